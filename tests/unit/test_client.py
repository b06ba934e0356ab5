"""The conversations of the client, with no network: what it asks, when it asks again, what it makes of the answers."""

import inspect
import json
import ssl
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from postroad.client import (
    AccessError,
    AsyncClient,
    Client,
    IntakeError,
    InvalidRequestError,
    NewTask,
    Refused,
    Submitted,
    TaskEvent,
    TaskStateError,
    UnansweredError,
    UnknownTaskError,
    calls,
    transport,
)
from postroad.client.address import Address
from postroad.client.batch import BYTES, Gatherer, Group, Line, Outcome, Sent, send
from postroad.client.exchange import Answer, Lost, Open, Pause, Read, Reply, Request
from postroad.client.journey import EventStream, follow
from postroad.client.patience import Patience
from postroad.core.errors import NotFoundError, RefusedError, SettingsError, UnreachableError, UnstorableError

ROOT = Path(__file__).parents[2]
ID = "01890a5d-ac96-774b-bcce-b302099a8057"
NOW = "2026-12-01T10:00:00+00:00"
ACCEPTED = {"task_id": ID, "pipeline": "travel", "status": "pending", "created_at": NOW, "trace_id": "0" * 32}
AWAY = Answer(503, {"retry-after": "2"}, b"away")
RESET = Lost("connection reset")
CLOSED = Lost("connection refused", was_sent=False)


@dataclass
class Stage:
    """Plays the network: answers what is asked with the next of ``replies``, and lets time pass by the pauses."""

    replies: list[Any]
    seconds: float = 60.0
    now: float = 0.0
    asked: list[Request] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    came: list[Any] = field(default_factory=list)

    @property
    def patience(self) -> Patience:
        return Patience("http://door", self.seconds, self.told.append, lambda: self.now)

    def play(self, conversation: Generator[Any, Reply, Any]) -> Any:
        """What the conversation comes to; the items that it yields are in ``came``."""
        reply: Reply = None
        try:
            while True:
                step = conversation.send(reply)
                reply = None
                if isinstance(step, Pause):
                    assert step.seconds > 0
                    self.now += step.seconds
                elif isinstance(step, Request | Open | Read):
                    if not isinstance(step, Read):
                        self.asked.append(step.request if isinstance(step, Open) else step)
                    reply = self.replies.pop(0)
                    if callable(reply):
                        reply = reply()
                else:
                    self.came.append(step)
        except StopIteration as done:
            assert self.replies == []
            return done.value


def answered(status: int, body: Any, **headers: str) -> Answer:
    return Answer(status, {name.replace("_", "-"): value for name, value in headers.items()}, json.dumps(body).encode())


def problem(status: int, **more: Any) -> Answer:
    return answered(status, {"type": "/problems/x", "title": "No", "status": status, "detail": "why"} | more)


def task(status: str = "completed") -> Answer:
    run = {"stage": "pack", "status": "done", "attempts": 1, "result": {"by": 1}, "error": None, "next_retry_at": None}
    run |= {"worker": "w", "started_at": NOW, "finished_at": NOW}
    body = {
        "task_id": ID, "pipeline": "travel", "priority": "normal", "status": status, "stage_status": "pack_done",
        "stages_done": ["pack"], "retry_count": 0, "version": 2, "payload": 7, "labels": {"a": "b"},
        "trace_id": "0" * 32, "not_before": None, "deadline": None, "created_at": NOW, "updated_at": NOW,
        "finished_at": NOW if status == "completed" else None, "stages": [run], "of_a_later_version": True,
    }  # fmt: skip
    return answered(200, body)


# One task


def test_a_submission_is_given_a_key_and_keeps_it_however_often_it_is_sent() -> None:
    stage = Stage([RESET, AWAY, Answer(429), Answer(502), CLOSED, answered(202, ACCEPTED, idempotent_replayed="true")])

    submitted = stage.play(calls.submit("travel", NewTask({"to": "Rome"}, labels={"a": "b"}), stage.patience))

    (key,) = {request.headers["Idempotency-Key"] for request in stage.asked}
    assert len(stage.asked) == 6
    assert len({request.body for request in stage.asked}) == 1
    assert json.loads(stage.asked[0].body or b"") == {
        "pipeline": "travel", "payload": {"to": "Rome"}, "labels": {"a": "b"},
    }  # fmt: skip
    assert submitted == Submitted(
        UUID(ID), "travel", datetime(2026, 12, 1, 10, tzinfo=UTC), "0" * 32, is_replay=True, key=key.strip('"')
    )
    assert stage.told[0] == "connection reset"
    assert stage.now >= 2  # Retry-After


def test_keys_differ_and_an_id_stands_for_one() -> None:
    stage = Stage([])

    for new in (NewTask(1), NewTask(1), NewTask(1, task_id=UUID(ID)), NewTask(1, key='a"b\\c')):
        stage.replies = [answered(202, ACCEPTED)]
        stage.play(calls.submit("travel", new, stage.patience))

    first, second, own_id, own_key = (request.headers.get("Idempotency-Key") for request in stage.asked)
    assert first != second
    assert own_id is None
    assert own_key == r'"a\"b\\c"'


@pytest.mark.parametrize("key", ["", "x" * 256, "é", "a\nb"])
def test_a_key_that_no_header_can_hold_is_refused_before_it_is_sent(key: str) -> None:
    with pytest.raises(UnstorableError, match="1 to 255 printable ASCII"):
        Stage([]).play(calls.submit("travel", NewTask(1, key=key), Stage([]).patience))


def test_a_payload_that_is_no_json_is_named() -> None:
    with pytest.raises(UnstorableError, match=r"at /payload/0"):
        Stage([]).play(calls.submit("travel", NewTask([float("nan")]), Stage([]).patience))


def test_patience_ends_and_says_what_may_have_happened_and_by_which_key_to_go_on() -> None:
    lost, never = Stage([CLOSED, RESET] + [CLOSED] * 100, seconds=10), Stage([CLOSED] * 100, seconds=10)

    with pytest.raises(UnansweredError, match="the intake at http://door does not answer: connection refused") as sent:
        lost.play(calls.submit("travel", NewTask(1, key="k"), lost.patience))
    with pytest.raises(UnreachableError) as unsent:
        never.play(calls.submit("travel", NewTask(1, key="k"), never.patience))

    assert (sent.value.key, sent.value.may_have_happened) == ("k", True)
    assert isinstance(unsent.value, UnansweredError)
    assert not unsent.value.may_have_happened
    assert lost.now == pytest.approx(10)
    assert 5 <= len(lost.asked) <= 20


def test_it_does_not_wait_for_a_moment_beyond_its_patience() -> None:
    stage = Stage([Answer(429, {"retry-after": "61"})])

    with pytest.raises(UnansweredError, match="429"):
        stage.play(calls.submit("travel", NewTask(1), stage.patience))

    assert stage.now == 0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2", 2),
        ("", 0),
        ("soon", 0),
        ("-3", 0),
        ("Tue, 01 Dec 2020 10:00:00 GMT", 0),
        ("in an hour", 3600),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float) -> None:
    if value == "in an hour":
        value = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    assert Answer(503, {"retry-after": value}).retry_after == pytest.approx(seconds, abs=60)


@pytest.mark.parametrize(
    ("status", "kind", "also"),
    [
        (400, InvalidRequestError, ValueError),
        (401, AccessError, PermissionError),
        (403, AccessError, PermissionError),
        (404, UnknownTaskError, NotFoundError),
        (409, TaskStateError, RefusedError),
        (413, InvalidRequestError, ValueError),
        (422, InvalidRequestError, ValueError),
        (500, IntakeError, IntakeError),
    ],
)
def test_an_error_is_raised_at_once_and_says_what_is_wrong(
    status: int, kind: type[IntakeError], also: type[Exception]
) -> None:
    errors = [{"pointer": "#/labels/a%20b", "detail": "too long"}, {"pointer": "#/payload", "detail": "none"}, 7]
    stage = Stage([problem(status, errors=errors)])

    with pytest.raises(kind) as raised:
        stage.play(calls.task(ID, stage.patience))

    assert type(raised.value) is kind
    assert isinstance(raised.value, also)
    assert (raised.value.status, raised.value.title, raised.value.detail) == (status, "No", "why")
    assert raised.value.faults == {"/labels/a b": "too long", "/payload": "none"}
    assert str(raised.value) == f"http://door answers {status} No: /labels/a b: too long; /payload: none"


@pytest.mark.parametrize("status", [302, 404, 409, 500])
def test_another_server_than_an_intake_is_no_task_that_is_not_there(status: int) -> None:
    stage = Stage([Answer(status, {}, b"<html>nothing here")])

    with pytest.raises(IntakeError) as raised:
        stage.play(calls.task(ID, stage.patience))

    assert type(raised.value) is IntakeError
    assert str(raised.value) == f"http://door answers {status} <html>nothing here"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"task_id": 7}', b"[" * 100_000])
def test_an_answer_that_no_intake_gives_is_an_error(body: bytes) -> None:
    for conversation in (calls.task, lambda task_id, patience: calls.cancel(task_id, None, None, patience)):
        with pytest.raises(IntakeError, match="answers 200 with what no intake says"):
            Stage([Answer(200, {}, body)]).play(conversation(ID, Stage([]).patience))


def test_a_key_in_somebodys_hands_is_waited_for() -> None:
    stage = Stage([Answer(409, {"retry-after": "2"}), answered(202, ACCEPTED)])
    stage.play(calls.submit("travel", NewTask(1), stage.patience))
    assert stage.now >= 2

    held = Stage([answered(409, {"title": "Conflict", "detail": "held"}, retry_after="2")] * 100, seconds=10)
    with pytest.raises(TaskStateError, match="held"):
        held.play(calls.submit("travel", NewTask(1), held.patience))


def test_a_retry_that_may_have_arrived_is_not_sent_again() -> None:
    conversation: Callable[[Patience], Any] = lambda patience: calls.retry(ID, "pack", "ada", None, patience)  # noqa: E731
    good = Stage([CLOSED, Answer(429), answered(200, {"task_id": ID, "stages": ["pack", "ride"]})])
    assert good.play(conversation(good.patience)) == ["pack", "ride"]
    assert json.loads(good.asked[0].body or b"") == {"from": "pack", "by": "ada"}

    for reply in (RESET, AWAY, Answer(504)):
        stage = Stage([reply])
        with pytest.raises(UnansweredError) as raised:
            stage.play(conversation(stage.patience))
        assert raised.value.may_have_happened


# Waiting and following


def test_waiting_lets_the_intake_hold_its_answer() -> None:
    stage = Stage([])

    def held() -> Answer:
        stage.now += 30
        return task("in_progress")

    stage.replies = [held, held, task()]
    view = stage.play(calls.wait(ID, 100, stage.patience))

    assert [request.path for request in stage.asked] == [f"/v1/tasks/{ID}?wait={hold}" for hold in (30, 30, 30)]
    assert (stage.now, view.is_terminal, view.results) == (60, True, {"pack": {"by": 1}})


@pytest.mark.parametrize("first", [task("in_progress"), problem(400)])
def test_waiting_looks_again_where_answers_are_not_held(first: Answer) -> None:
    stage = Stage([first, *[task("in_progress")] * 8, task()])

    assert stage.play(calls.wait(ID, None, stage.patience)).status == "completed"

    assert {request.path for request in stage.asked[1:]} == {f"/v1/tasks/{ID}"}
    assert 2 < stage.now < 16


def test_an_intake_that_holds_too_many_answers_is_asked_without_and_then_with() -> None:
    full = Answer(503, {"retry-after": "5"})
    stage = Stage([full, task("in_progress"), full, AWAY, task("in_progress"), task()])

    stage.play(calls.wait(ID, 100, stage.patience))

    assert ["wait" in request.path for request in stage.asked] == [True, False, True, False, False, True]
    assert stage.now >= 12


def test_waiting_ends_with_where_the_task_is() -> None:
    stage = Stage([task("in_progress")] * 40)

    with pytest.raises(TimeoutError, match=r"is in_progress \(pack_done\) after 5 s"):
        stage.play(calls.wait(ID, 5, stage.patience))

    assert stage.now == pytest.approx(5)


def test_waiting_is_no_longer_than_it_says_where_the_intake_is_away() -> None:
    stage = Stage([CLOSED] * 100)

    with pytest.raises(UnansweredError):
        stage.play(calls.wait(ID, 5, stage.patience))

    assert stage.now == pytest.approx(5)


def event(position: int, type_: str) -> dict[str, Any]:
    return {"position": position, "type": type_, "stage": None, "data": {}, "occurred_at": NOW}


def journey(*events: dict[str, Any]) -> Answer:
    return answered(200, {"task_id": ID, "events": events}, content_type="application/json")


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(f"id: {one['position']}\ndata: {json.dumps(one)}\n\n".encode() for one in events)


A, B, C, D = event(1, "TaskCreated"), event(2, "TaskFailed"), event(5, "HostReserved"), event(9, "TaskCompleted")
STREAM = Answer(200, {"content-type": "text/event-stream; charset=utf-8"})


def positions(items: Iterable[TaskEvent]) -> list[int]:
    return [item.position for item in items]


def test_following_looks_again_where_there_is_no_stream() -> None:
    # What comes late may have a lower position: an author's event in a longer transaction.
    stage = Stage([journey(A), task("in_progress"), journey(A, D), task(), journey(A, C, D)])

    stage.play(follow(ID, stage.patience))

    assert positions(stage.came) == [1, 9, 5]


def test_a_stream_that_breaks_is_gone_on_with_where_it_was() -> None:
    first, second = sse(A, B), sse(C, D)
    stage = Stage([
        STREAM, b": hello\n\n" + first[:20], first[20:], task("in_progress"), journey(A, B),
        RESET, task("in_progress"), journey(A, B),
        CLOSED, AWAY, task("in_progress"), journey(A, B), STREAM, second, task(), journey(A, B, C, D),
    ])  # fmt: skip

    stage.play(follow(ID, stage.patience))

    assert positions(stage.came) == [1, 2, 5, 9]
    opened = [request for request in stage.asked if request.headers.get("Accept") == "text/event-stream"]
    assert [request.headers.get("Last-Event-ID") for request in opened] == [None, "2", "2", "2"]


def test_a_stream_that_ends_again_and_again_without_a_word_ends_following() -> None:
    stage = Stage([STREAM, b"", task("in_progress"), journey(A)] * 50, seconds=10)

    with pytest.raises(UnansweredError, match="ends without one"):
        stage.play(follow(ID, stage.patience))

    assert positions(stage.came) == [1]


def test_a_stream_is_taken_apart_wherever_it_is_cut() -> None:
    text = b": ping\r\n\r\nid: 1\r\nevent: x\r\ndata: a\r\ndata: \xc3\xa9\r\n\r\n"
    text += b"retry: 3000\n\nid: 2\ndata:b\n\ndata: c\n\n"
    expected = [("1", "a\né"), ("2", "b"), ("2", "c")]

    for size in (1, 2, 3, 7, len(text)):
        stream = EventStream()
        chunks = [text[start : start + size] for start in range(0, len(text), size)]
        assert [one for chunk in chunks for one in stream.feed(chunk)] == expected


# Many tasks


def gathered(items: Iterable[Any], lines: int = 1000, **defaults: Any) -> list[Group]:
    gatherer = Gatherer("travel", "r", defaults, lines=lines)
    groups = [gatherer.take() for item in items if gatherer.add(item)]
    return [*groups, gatherer.take()]


def documents(group: Group) -> list[Any]:
    return [json.loads(line.text) if isinstance(line, Line) else line.message for line in group]


def test_what_is_gathered_is_a_payload_a_task_or_a_line() -> None:
    own = uuid4()
    (group,) = gathered(
        [
            "text",
            NewTask({"n": 1}, key="k", priority="low"),
            NewTask(None, task_id=own),
            b"\n",
            b'{"payload": 2, "labels": null, "idempotency_key": null}\r\n',
            b'{"pipeline": "sea", "payload": 3}',
            b"[1]",
            b"{",
            {"n": float("inf")},
            object(),
        ],
        priority="high",
        labels={"a": "b"},
    )

    high, low = {"pipeline": "travel", "labels": {"a": "b"}, "priority": "high"}, {"priority": "low"}
    assert documents(group) == [
        high | {"payload": "text", "idempotency_key": "submit-r-1"},
        high | low | {"payload": {"n": 1}, "idempotency_key": "k"},
        high | {"payload": None, "task_id": str(own)},
        high | {"payload": 2, "idempotency_key": "submit-r-5"},
        "it is for the pipeline 'sea'",
        "not an object with the member payload",
        "the body is no JSON: Expecting property name enclosed in double quotes in line 1, column 2",
        "a number is not finite, or too large for a double (at /payload/n)",
        "a object is no JSON value (at /payload)",
    ]
    assert [line.number for line in group] == [1, 2, 3, 5, 6, 7, 8, 9, 10]


def test_groups_have_so_many_lines_or_so_many_bytes() -> None:
    assert [len(group) for group in gathered(range(2500))] == [1000, 1000, 500]
    assert [len(group) for group in gathered(["x" * (BYTES // 2)] * 5)] == [2, 2, 1]
    assert [len(group) for group in gathered([b" "])] == [0]


def lines_of(request: Request) -> list[int]:
    return [json.loads(line)["payload"] for line in (request.body or b"").splitlines()]


def sent(stage: Stage, group: Group) -> list[Outcome]:
    """What became of the lines of ``group``; raises the error that ended it."""
    told: Sent = stage.play(send(group, stage.patience))
    if told.error:
        raise told.error
    return told.outcomes


def batch_answer(*statuses: int, **headers: str) -> Answer:
    told = [
        ACCEPTED | {"line": number, "status": 202}
        if status == 202
        else {"line": number, "status": status, "title": "No", "detail": f"{status}!"}
        for number, status in enumerate(statuses, start=1)
    ]
    body = b"\n".join(json.dumps(line).encode() for line in told)
    return Answer(200, {name.replace("_", "-"): value for name, value in headers.items()}, body)


def test_lines_that_came_too_fast_are_sent_again_and_the_answers_are_in_order() -> None:
    (group,) = gathered([1, b"{", 2, 3, 4])
    stage = Stage([batch_answer(202, 429, 422, 503, retry_after="2"), RESET, batch_answer(429, 202), batch_answer(202)])

    outcomes = sent(stage, group)

    assert [lines_of(request) for request in stage.asked] == [[1, 2, 3, 4], [2, 4], [2, 4], [2]]
    assert [(type(outcome), outcome.number) for outcome in outcomes] == [
        (Submitted, 1), (Refused, 2), (Submitted, 3), (Refused, 4), (Submitted, 5),
    ]  # fmt: skip
    assert isinstance(outcomes[3], Refused)
    assert isinstance(outcomes[3].error(), InvalidRequestError)
    assert stage.now >= 2


def test_lines_that_are_always_too_fast_end_with_patience() -> None:
    (group,) = gathered([1])
    stage = Stage([batch_answer(429, retry_after="5")] * 3, seconds=10)

    with pytest.raises(UnansweredError, match="429 429!"):
        sent(stage, group)


def test_lines_that_were_not_taken_are_sent_again() -> None:
    (group,) = gathered(range(5))
    first, second = batch_answer(202, 422, 413), batch_answer(202, 202, 202)
    stage = Stage([replace(first, body=first.body[:-1] + b', "rest": true}'), second])

    outcomes = sent(stage, group)

    assert [lines_of(request) for request in stage.asked] == [[0, 1, 2, 3, 4], [2, 3, 4]]
    assert [getattr(outcome, "status", 202) for outcome in outcomes] == [202, 422, 202, 202, 202]


def test_what_was_accepted_is_told_before_the_error_that_ends_the_rest() -> None:
    (group,) = gathered(range(5))
    stage = Stage([batch_answer(202, 429, 202, 422, 429), problem(403)])

    told = stage.play(send(group, stage.patience))

    assert [outcome.number for outcome in told.outcomes] == [1, 3, 4]
    assert isinstance(told.error, AccessError)


def test_patience_is_for_what_does_not_go_on_at_all() -> None:
    (group,) = gathered(range(10))
    batches = [batch_answer(202, *[429] * left, retry_after="5") for left in range(9, -1, -1)]
    stage = Stage(batches, seconds=12)
    assert len(sent(stage, group)) == 10
    assert stage.now >= 45

    stage = Stage([STREAM, b"", task(), journey()], seconds=0.4)
    for number in range(20):
        stage.replies[:0] = [STREAM, sse(event(number, "X")), b"", task("in_progress"), journey()]
    stage.play(follow(ID, stage.patience))
    assert positions(stage.came) == list(range(19, -1, -1))


def test_a_request_that_is_too_large_is_sent_in_parts() -> None:
    (group,) = gathered([1, 2, 3])
    too_large = problem(413)
    stage = Stage([too_large, batch_answer(202), too_large, too_large, batch_answer(202)])

    outcomes = sent(stage, group)

    assert [lines_of(request) for request in stage.asked] == [[1, 2, 3], [1], [2, 3], [2], [3]]
    assert [getattr(outcome, "status", 202) for outcome in outcomes] == [202, 413, 202]
    assert isinstance(outcomes[1], Refused)
    assert outcomes[1].message == "too large for the intake"


def test_a_group_with_nothing_to_send_is_not_sent() -> None:
    (group,) = gathered([b"{", b"["])

    assert [outcome.number for outcome in sent(Stage([]), group)] == [1, 2]


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"{}", b"[]", b"7", b'{"status": "202"}', b'{"status": 202}', b'{"status": 202}\n{"status": 202}'],
)
def test_answers_that_do_not_fit_the_lines_are_an_error(body: bytes) -> None:
    (group,) = gathered([1])

    with pytest.raises(IntakeError, match="no answer to a batch"):
        sent(Stage([Answer(200, {}, body)]), group)


# The clients


def test_both_clients_have_the_same_methods_with_the_same_parameters() -> None:
    def methods(client: type) -> dict[str, list[str]]:
        public = {name: member for name, member in vars(client).items() if callable(member) and name[0] != "_"}
        return {name: list(inspect.signature(member).parameters) for name, member in public.items()}

    assert methods(Client) == methods(AsyncClient)
    assert set(methods(Client)) == {"close", "submit", "submit_many", "task", "wait", "follow", "cancel", "retry"}


def test_where_there_is_tls_certificates_are_checked() -> None:
    own = ssl.create_default_context()

    def verify(url: str, tls: ssl.SSLContext | None = None) -> object:
        return transport.options(Address(url), tls)["verify"]

    assert [verify(url) for url in ("http://door", "https://door", "HTTPS://door")] == [False, True, True]
    assert verify("https://door", own) is own


def test_what_is_secret_is_not_shown() -> None:
    with Client("http://door/", token="hidden") as client:
        assert repr(client) == "Client('http://door', token='***')"
    assert repr(AsyncClient("http://ada:hidden@door:80/a/")) == "AsyncClient('http://door:80/a', token='***')"
    assert repr(AsyncClient("http://door")) == "AsyncClient('http://door')"
    assert Address("http://ada:p%40ss@door").headers == {"Authorization": "Basic YWRhOnBAc3M="}
    assert Address("http://door", "t").headers == {"Authorization": "Bearer t"}

    for url, token in (
        ("http://door", "hidden\n"),
        ("http://door", "hidden hidden"),
        ("ftp://ada:hidden@door", None),
        ("ada:hidden@door", None),
        ("http://ada:hidden@door", "hidden"),
    ):
        with pytest.raises(SettingsError) as raised:
            Client(url, token=token)
        assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["door:8080", "ftp://door", "http://", "http://door:0", "http://door:x", "http://d?a=b"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="is not of the form http://host:port"):
        Client(url)


def test_importing_the_client_imports_no_driver() -> None:
    program = "import sys, postroad.client; print(*sorted(sys.modules))"

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    loaded = set(done.stdout.split())
    assert "httpx2" in loaded
    heavy = {"psycopg", "sqlalchemy", "redis", "alembic", "aiohttp", "opentelemetry", "starlette", "uvicorn", "rich"}
    assert heavy.isdisjoint(loaded)
    ours = {name for name in loaded if name.startswith("postroad.") and not name.startswith("postroad.client")}
    assert {name.partition(".")[2].partition(".")[0] for name in ours} == {"core"}
