"""The HTTP door on a real Postgres: what is accepted, what is refused, and that what is refused leaves nothing."""

import asyncio
import gzip
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Literal
from uuid import UUID, uuid4

import httpx2
import pytest

from postroad import Settings
from postroad.core.outcome import Reject
from postroad.core.servers import Postgres
from postroad.intake.app import create_app
from postroad.migrations import upgrade
from tests.integration.door import NOTHING, Door, line, open_door, open_port, pointers, problem, raw
from tests.integration.road import TRAVEL, Road, open_road, pipeline

URGENT = pipeline("urgent", priorities=True, pack=())
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"
NOBODY = "postgresql://postgres:secret@127.0.0.1:1/postgres"


# Accepting


async def test_an_accepted_task_is_committed_with_the_event_of_its_creation(door: Door) -> None:
    answer = await door.submit(labels={"team": "blue"})

    assert answer.status_code == 202
    body = answer.json()
    task_id = UUID(body["task_id"])
    assert task_id.version == 7
    assert answer.headers["location"] == f"/v1/tasks/{task_id}"
    assert "idempotent-replayed" not in answer.headers
    assert (body["pipeline"], body["status"]) == ("travel", "pending")
    columns = ("pipeline", "payload", "labels", "status", "stage_status", "stages_done", "version", "trace_id")
    row = await door.road.task(task_id, *columns)
    assert row == ("travel", {"to": "Rome"}, {"team": "blue"}, "pending", "received", [], 1, body["trace_id"])
    events = await door.road.ask("select task_id, type, stage, data, traceparent from postroad.outbox")
    assert events == [(task_id, "TaskCreated", None, {}, answer.headers["traceparent"])]
    assert await door.road.count() == {"task": 1, "outbox": 1, "intake_key": 0}


async def test_an_incoming_trace_is_continued(door: Door) -> None:
    answer = await door.post(raw(line()), traceparent=TRACEPARENT)

    assert answer.json()["trace_id"] == TRACE
    assert await traces(door.road) == {(TRACE, TRACE, TRACE)}


async def test_a_trace_begins_where_none_comes_in(door: Door, subtests: pytest.Subtests) -> None:
    zeros = f"00-{'0' * 32}-b7ad6b7169203331-01"
    begun = set()
    for given in (None, "", "00-0-0-0", TRACEPARENT.upper(), zeros, "\xe9" * 55):
        with subtests.test(given=given):
            answer = await post_with(door, traceparent=given)
            trace = answer.json()["trace_id"]
            assert len(trace) == 32
            assert trace not in (TRACE, "0" * 32)
            begun.add(trace)
    assert await traces(door.road) == {(trace, trace, trace) for trace in begun}


async def post_with(door: Door, path: str = "/v1/tasks", **headers: str | None) -> httpx2.Response:
    """Submit a task with headers of any bytes, or without those that are ``None``."""
    given = {"content_type": "application/json"} | headers
    pairs = [
        (name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in given.items() if value is not None
    ]
    return await door.client.post(path, content=raw(line()), headers=pairs)


async def traces(road: Road) -> set[tuple[str, ...]]:
    """The traces of tasks as in ``trace_id``, in ``traceparent`` and in the event of the creation."""
    statement = (
        "select trace_id, task.traceparent, o.traceparent from postroad.task join postroad.outbox o using (task_id)"
    )
    return {(trace, own[3:35], event[3:35]) for trace, own, event in await road.ask(statement)}


async def test_media_types_may_have_parameters_and_any_case(door: Door) -> None:
    answer = await door.post(raw(line()), Content_Type="Application/JSON; charset=utf-8")

    assert answer.status_code == 202


# Idempotency


async def test_the_same_key_and_body_get_the_same_answer(door: Door) -> None:
    first = await door.submit("order-7", labels={"a": "b"})
    again = await door.submit("order-7", labels={"a": "b"})

    assert first.status_code == again.status_code == 202
    assert again.content == first.content
    assert again.headers["location"] == first.headers["location"]
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert await door.road.count() == {"task": 1, "outbox": 1, "intake_key": 1}


async def test_a_replay_tells_of_the_first_trace(door: Door) -> None:
    first = await door.post(raw(line()), Idempotency_Key="k", traceparent=TRACEPARENT)
    again = await door.post(raw(line()), Idempotency_Key="k", traceparent=TRACEPARENT.replace("0af7", "ffff"))

    assert first.json()["trace_id"] == again.json()["trace_id"] == TRACE


async def test_a_key_is_replayed_when_its_task_is_done(door: Door) -> None:
    first = await door.submit("k")
    await door.road.complete(UUID(first.json()["task_id"]))

    again = await door.submit("k")

    assert again.content == first.content


async def test_a_key_outlives_its_task(door: Door) -> None:
    first = await door.submit("k")
    await door.road.ask("delete from postroad.task")

    again = await door.submit("k")

    assert again.json()["task_id"] == first.json()["task_id"]
    assert await door.road.count("task") == {"task": 0}


async def test_the_same_key_with_another_body_is_refused(door: Door, subtests: pytest.Subtests) -> None:
    first = await door.submit("k", labels={"a": "b"})

    others: tuple[dict[str, Any], ...] = (
        {"payload": {"to": "Ostia"}}, {"labels": {"a": "c"}}, {"labels": None}, {"task_id": str(uuid4())}
    )  # fmt: skip
    for other in others:
        with subtests.test(other=other):
            body = problem(await door.submit("k", **({"labels": {"a": "b"}} | other)), 422, "key-reused")
            assert body["task_id"] == first.json()["task_id"]
    assert await door.road.count() == {"task": 1, "outbox": 1, "intake_key": 1}


async def test_a_key_belongs_to_its_pipeline(door: Door) -> None:
    await door.road.deploy(pipeline("return", ride=()))

    there = await door.submit("k")
    back = await door.submit("k", pipeline="return")

    assert there.status_code == back.status_code == 202
    assert there.json()["task_id"] != back.json()["task_id"]


async def test_a_key_is_the_same_quoted_or_bare(door: Door, subtests: pytest.Subtests) -> None:
    for one, other in (('"8e03978e-40d5"', "8e03978e-40d5"), (r'"a \"b\" \\c"', r'a "b" \c'), ("  k  ", '"k"')):
        with subtests.test(key=one):
            first = await door.submit(one)
            again = await door.submit(other)
            assert again.headers["idempotent-replayed"] == "true"
            assert again.content == first.content
    keys = await door.road.ask("select key from postroad.intake_key order by key")
    assert keys == [("8e03978e-40d5",), (r'a "b" \c',), ("k",)]


async def test_a_key_has_up_to_255_characters(door: Door) -> None:
    for key in ("k", "~" * 255, f'"{"!" * 255}"'):
        assert (await door.submit(key)).status_code == 202


async def test_a_key_that_is_none_is_refused(door: Door, subtests: pytest.Subtests) -> None:
    bad = [
        "",
        " ",
        '""',
        '" "',
        "k" * 256,
        "a\tb",
        "\xe9",
        '"',
        '"open',
        r'"a\b"',
        '"a"b"',
        '"k";p=1',
        '" k"',
    ]
    for key in bad:
        with subtests.test(key=key):
            answer = await post_with(door, idempotency_key=key)
            assert "Idempotency-Key" in problem(answer, 400, "malformed")["detail"]
    with subtests.test("two keys"):
        twice = [("content-type", "application/json"), ("idempotency-key", "a"), ("idempotency-key", "a")]
        problem(await door.client.post("/v1/tasks", content=raw(line()), headers=twice), 400, "malformed")
    assert await door.road.count() == NOTHING


async def test_many_requests_at_once_with_one_key_are_one_task(settings: Settings, door: Door) -> None:
    async with open_door(settings) as another_process:
        doors = [door, Door(another_process, door.road)]
        answers = await asyncio.gather(*(doors[number % 2].submit("k") for number in range(200)))

    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.content for answer in answers}) == 1
    assert Counter(answer.headers.get("idempotent-replayed") for answer in answers) == {None: 1, "true": 199}
    assert await door.road.count() == {"task": 1, "outbox": 1, "intake_key": 1}


async def test_many_bodies_at_once_for_one_key_are_one_task(settings: Settings, door: Door) -> None:
    async with open_door(settings) as another_process:
        doors = [door, Door(another_process, door.road)]
        answers = await asyncio.gather(*(doors[number % 2].submit("k", payload=number // 20) for number in range(200)))

    accepted = [answer for answer in answers if answer.status_code == 202]
    refused = [answer for answer in answers if answer.status_code == 422]
    assert (len(accepted), len(refused)) == (20, 180)
    (task_id,) = {answer.json()["task_id"] for answer in answers}
    (payload,) = await door.road.task(UUID(task_id), "payload")
    assert [number for number, answer in enumerate(answers) if answer in accepted] == [
        number for number in range(200) if number // 20 == payload
    ]
    assert await door.road.count() == {"task": 1, "outbox": 1, "intake_key": 1}


async def test_a_task_id_of_the_clients_stands_for_a_key(door: Door) -> None:
    own = str(uuid4())

    first = await door.submit(task_id=own)
    again = await door.submit(task_id=own.upper())

    assert first.json()["task_id"] == own
    assert again.content == first.content
    assert again.headers["idempotent-replayed"] == "true"
    problem(await door.submit(task_id=own, payload="other"), 422, "key-reused")
    assert await door.road.count() == {"task": 1, "outbox": 1, "intake_key": 1}


async def test_a_task_id_that_is_another_tasks_is_a_conflict(door: Door) -> None:
    await door.road.deploy(pipeline("return", ride=()))
    own = str(uuid4())
    await door.submit("a", task_id=own)

    for refused in (
        await door.submit("b", task_id=own),
        await door.submit(task_id=own),
        await door.submit(task_id=own, pipeline="return"),
    ):
        assert own in problem(refused, 409, "task-exists")["detail"]

    assert await door.road.count() == {"task": 1, "outbox": 1, "intake_key": 1}


async def test_a_task_id_that_comes_twice_at_once_is_one_task(door: Door) -> None:
    own = str(uuid4())

    answers = await asyncio.gather(*(door.submit(f"key-{number % 10}", task_id=own) for number in range(100)))

    assert Counter(answer.status_code for answer in answers) == {202: 10, 409: 90}
    assert await door.road.count() == {"task": 1, "outbox": 1, "intake_key": 1}


# Bad input


BAD_TASKS: dict[str, tuple[bytes, list[str]]] = {
    "no members": (b"{}", ["#/pipeline", "#/payload"]),
    "pipeline of a wrong type": (b'{"pipeline":["travel"],"payload":1}', ["#/pipeline"]),
    "empty pipeline": (b'{"pipeline":"","payload":1}', ["#/pipeline"]),
    "unknown pipeline": (b'{"pipeline":"voyage","payload":1}', ["#/pipeline"]),
    "pipeline of another case": (b'{"pipeline":"Travel","payload":1}', ["#/pipeline"]),
    "endless pipeline": (b'{"pipeline":"%s","payload":1}' % (b"x" * 500_000), ["#/pipeline"]),
    "unknown member": (raw(line(urgency=1)), ["#/urgency"]),
    "priority that is a number": (raw(line(priority=1)), ["#/priority"]),
    "priority that is none": (raw(line(priority="High")), ["#/priority"]),
    "priority of a pipeline that has none": (raw(line(priority="low")), ["#/priority"]),
    "key in the body": (raw(line(idempotency_key="k")), ["#/idempotency_key"]),
    "unknown member to be escaped": (raw(line(**{"a/b~c é%": 1})), ["#/a~1b~0c%20%C3%A9%25"]),
    "task_id of a wrong type": (raw(line(task_id=7)), ["#/task_id"]),
    "task_id that is none": (raw(line(task_id="0" * 36)), ["#/task_id"]),
    "task_id without hyphens": (raw(line(task_id=uuid4().hex)), ["#/task_id"]),
    "task_id in braces": (raw(line(task_id=f"{{{str(uuid4())[:-2]}}}")), ["#/task_id"]),
    "task_id with hyphens elsewhere": (raw(line(task_id="01890a5dac96774bbcceb302099a8057----")), ["#/task_id"]),
    "task_id in other digits": (raw(line(task_id="٠" * 8 + "-0000-0000-0000-000000000001")), ["#/task_id"]),
    "labels of a wrong type": (raw(line(labels=["a"])), ["#/labels"]),
    "17 labels": (raw(line(labels={f"l{number}": "" for number in range(17)})), ["#/labels"]),
    "labels that are no strings": (raw(line(labels={"a": 1, "b": "", "c": None})), ["#/labels/a", "#/labels/c"]),
    "label without a name": (raw(line(labels={"": "x"})), ["#/labels/"]),
    "label of a bad name": (raw(line(labels={"a b": "x", "c/d": "x"})), ["#/labels/a%20b", "#/labels/c~1d"]),
    "label of a long name": (raw(line(labels={"n" * 64: "x"})), [f"#/labels/{'n' * 64}"]),
    "long label": (raw(line(labels={"a": "x" * 256})), ["#/labels/a"]),
    "faults all over": (
        b'{"pipeline":1,"task_id":"x","labels":0,"more":0}',
        ["#/more", "#/pipeline", "#/payload", "#/task_id", "#/labels"],
    ),
}  # fmt: skip


async def test_a_task_has_the_priority_that_was_asked_for_and_so_has_its_event(door: Door) -> None:
    await door.road.deploy(URGENT)

    answers = [await door.submit(pipeline="urgent", priority=given) for given in ("high", "normal", "low", None)]

    tasks = [UUID(answer.json()["task_id"]) for answer in answers]
    shown = [(await door.client.get(f"/v1/tasks/{task_id}")).json()["priority"] for task_id in tasks]
    assert shown == ["high", "normal", "low", "normal"]
    rows = await door.road.ask(
        "select task_id, task.priority, outbox.priority from postroad.task join postroad.outbox using (task_id)"
    )
    assert sorted(rows) == sorted(zip(tasks, (2, 1, 0, 1), (2, 1, 0, 1), strict=True))


async def test_a_priority_is_refused_with_a_hint_by_a_pipeline_that_has_none(door: Door) -> None:
    body = problem(await door.submit(priority="high"), 422, "invalid")
    told = await door.batch([line(priority="low"), line(priority="normal")])

    assert "pipeline 'travel' has no priorities, so none of its tasks is high" in body["detail"]
    assert "Pipeline(…, priorities=True) and run postroad deploy" in body["detail"]
    assert [answer["status"] for answer in told] == [422, 202]
    assert await door.road.count("task") == {"task": 1}


async def test_a_key_stands_for_one_priority_even_when_the_pipeline_has_none_any_more(door: Door) -> None:
    await door.road.deploy(URGENT)
    first = await door.submit("k", pipeline="urgent", priority="high")

    other = await door.submit("k", pipeline="urgent", priority="low")
    await door.road.deploy(pipeline("urgent", pack=()))
    again = await door.submit("k", pipeline="urgent", priority="high")

    assert problem(other, 422, "key-reused")["task_id"] == first.json()["task_id"]
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json()["task_id"] == first.json()["task_id"]
    problem(await door.submit("l", pipeline="urgent", priority="high"), 422, "invalid")
    assert await door.road.count("task", "intake_key") == {"task": 1, "intake_key": 1}


async def test_what_is_wrong_with_a_task_is_told_and_leaves_nothing(door: Door, subtests: pytest.Subtests) -> None:
    for name, (body, expected) in BAD_TASKS.items():
        for key in (None, "k"):
            with subtests.test(name, key=key):
                answer = await (door.post(body, Idempotency_Key=key) if key else door.post(body))
                assert pointers(problem(answer, 422, "invalid")) == sorted(expected)
                assert len(answer.content) < 2_000
                assert await door.road.count() == NOTHING


async def test_a_body_within_the_limits_of_labels_and_size_is_accepted(door: Door) -> None:
    largest = raw(line(labels={f"{'n' * 61}{number:02}": "x" * 255 for number in range(16)}))

    assert (await door.post(largest)).status_code == 202
    assert (await door.post(largest + b" " * (1024 * 1024 - len(largest)))).status_code == 202


async def test_a_body_over_the_limit_is_too_large_with_and_without_its_length(settings: Settings, door: Door) -> None:
    async with open_door(replace(settings, body_limit=2048, batch_limit=2048)) as client:
        for path, media_type in (("/v1/tasks", "application/json"), ("/v1/tasks:batch", "application/x-ndjson")):
            headers = {"Content-Type": media_type}
            over = await client.post(path, content=raw(line()) + b" " * 2048, headers=headers)
            chunked = await client.post(path, content=chunks(3), headers=headers)
            lying = await client.post(path, content=chunks(3), headers=headers | {"Content-Length": "5"})
            endless = await client.post(path, content=b"{}", headers=headers | {"Content-Length": "9" * 5000})
            within = await client.post(path, content=raw(line()).ljust(2048), headers=headers)

            for answer in (over, chunked, lying, endless):
                assert "2,048 bytes" in problem(answer, 413, "too-large")["detail"]
            assert within.status_code in (200, 202)

    assert await door.road.count("task") == {"task": 2}


async def chunks(count: int) -> AsyncIterator[bytes]:
    """A body of so many KiB whose length is not told beforehand."""
    for _ in range(count):
        yield b" " * 1024


async def test_another_media_type_is_refused(door: Door, subtests: pytest.Subtests) -> None:
    for path, wanted in (("/v1/tasks", "application/json"), ("/v1/tasks:batch", "application/x-ndjson")):
        for given in (None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonp", "\xe9"):
            with subtests.test(path, given=given):
                answer = await post_with(door, path, content_type=given)
                problem(answer, 415, "unsupported-media-type")
                assert answer.headers["accept-post"] == wanted
    assert await door.road.count() == NOTHING


async def test_one_of_two_media_types_is_not_chosen(door: Door) -> None:
    for types in (
        (b"application/json", b"text/plain"),
        (b"text/plain", b"application/json"),
        (b"application/json",) * 2,
    ):
        headers = [(b"content-type", one) for one in types]
        problem(await door.client.post("/v1/tasks", content=raw(line()), headers=headers), 415)
    assert await door.road.count() == NOTHING


async def test_a_body_that_is_encoded_is_refused_and_told_how_to_come(door: Door, subtests: pytest.Subtests) -> None:
    for send in (door.post, door.post_batch):
        for coding, body in (("gzip", gzip.compress(raw(line()))), ("br", raw(line())), ("identity, gzip", b"")):
            with subtests.test(send.__name__, coding=coding):
                answer = await send(body, Content_Encoding=coding)
                assert coding in problem(answer, 415, "unsupported-content-encoding")["detail"]
                assert answer.headers["accept-encoding"] == "identity"
    assert await door.road.count() == NOTHING

    for coding in ("identity", "Identity", ""):
        assert (await door.post(raw(line()), Content_Encoding=coding)).status_code == 202


async def test_an_answer_names_only_the_first_faults(door: Door) -> None:
    answer = await door.post(raw({f"m{number}": 1 for number in range(50_000)}))

    body = problem(answer, 422, "invalid")
    assert "50,002 members" in body["detail"]
    assert len(body["errors"]) == 20


@pytest.mark.parametrize("parser", ["h11", "httptools"])
async def test_uploads_over_the_wire_may_be_too_large_or_break_off(
    settings: Settings, door: Door, parser: Literal["h11", "httptools"]
) -> None:
    head = b"POST /v1/tasks HTTP/1.1\r\nHost: door\r\nContent-Type: application/json\r\n"
    body = raw(line())

    async with open_port(create_app(settings), parser=parser) as port, httpx2.AsyncClient() as client:
        url, headers = f"http://127.0.0.1:{port}/v1/tasks", {"Content-Type": "application/json"}
        for content in (b" " * 5_000_000, chunks(5_000)):
            problem(await client.post(url, content=content, headers=headers), 413, "too-large")

        # Who says beforehand that it will be too much need not send it.
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"Content-Length: 10000000000\r\n\r\n")
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()

        for part in (
            b"Content-Length: %d\r\n\r\n" % (len(body) + 1) + body,
            b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body,
        ):
            for leave in (asyncio.StreamWriter.close, lambda writer: writer.transport.abort()):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head + part)
                await writer.drain()
                leave(writer)

        assert (await client.post(url, content=body, headers=headers)).status_code == 202
    assert await door.road.count() == {"task": 1, "outbox": 1, "intake_key": 0}


# Looking up


async def test_a_task_is_shown_with_its_stage_runs(door: Door) -> None:
    accepted = await door.submit(labels={"team": "blue"})
    task_id = UUID(accepted.json()["task_id"])
    await door.road.commit(task_id, "pack")
    await door.road.commit(task_id, "ride", Reject("no horse"))

    answer = await door.client.get(f"/v1/tasks/{task_id}")

    assert answer.status_code == 200
    body = answer.json()
    assert {name: body[name] for name in ("task_id", "pipeline", "status", "stage_status", "payload", "labels")} == {
        "task_id": str(task_id),
        "pipeline": "travel",
        "status": "failed",
        "stage_status": "failed_at_stage:ride",
        "payload": {"to": "Rome"},
        "labels": {"team": "blue"},
    }
    assert body["created_at"] == accepted.json()["created_at"]
    assert [(run["stage"], run["status"], run["attempts"], run["result"]) for run in body["stages"]] == [
        ("pack", "done", 1, {"by": "test"}),
        ("ride", "dead", 1, None),
    ]
    assert body["stages"][1]["error"] == "no horse"


async def test_a_task_that_has_not_begun_has_no_stage_runs(door: Door) -> None:
    accepted = await door.submit()

    body = (await door.client.get(accepted.headers["location"])).json()

    assert (body["status"], body["stages"], body["stages_done"], body["finished_at"]) == ("pending", [], [], None)


async def test_the_events_of_a_task_are_its_journey(door: Door) -> None:
    task_id = (await door.submit()).json()["task_id"]
    await door.submit()
    await door.road.complete(UUID(task_id))

    body = (await door.client.get(f"/v1/tasks/{task_id}/events")).json()

    assert body["task_id"] == task_id
    events = body["events"]
    assert [event["type"] for event in events] == [
        "TaskCreated",
        "StageCompleted:pack",
        "StageCompleted:ride",
        "StageCompleted:rest",
        "StageRequested:arrive",
        "StageCompleted:arrive",
        "TaskCompleted",
    ]
    assert [event["stage"] for event in events] == [None, "pack", "ride", "rest", "arrive", "arrive", None]
    assert events[1]["data"].keys() == {"attempt", "worker", "started_at", "ran_seconds"}
    assert (events[1]["data"]["attempt"], events[1]["data"]["worker"]) == (1, "host:1:00000000")
    assert [event["position"] for event in events] == sorted(event["position"] for event in events)


async def test_a_task_that_there_is_not_is_not_found(door: Door, subtests: pytest.Subtests) -> None:
    for given in (str(uuid4()), "7", "%00", "%ed%a0%80", "a" * 3000, "..", "\u00e9", "{}"):
        for path in (f"/v1/tasks/{given}", f"/v1/tasks/{given}/events"):
            with subtests.test(path):
                problem(await door.client.get(path), 404, "not-found")


async def test_what_is_not_there_or_not_possible_is_a_problem(door: Door) -> None:
    for path in (
        *("/", "/v1", "/v2/tasks", "/v1/tasks:bulk", f"/v1/tasks/{uuid4()}/more", "/favicon.ico"),
        *(
            "/v1/tasks/",
            "/livez/",
            "//livez",
            "/v1//tasks",
            "/V1/tasks",
            "/v1%2Ftasks",
            "/v1/tasks%2f",
            "/v1/tasks;a=b",
        ),
    ):
        problem(await door.client.get(path), 404, "not-found")
    for method, path, allowed in (
        ("PUT", "/v1/tasks", "GET, HEAD, POST"),
        ("PUT", "/v1/tasks:batch", "POST"),
        ("DELETE", f"/v1/tasks/{uuid4()}", "GET"),
        ("POST", f"/v1/tasks/{uuid4()}/events", "GET"),
        ("POST", "/livez", "GET"),
        ("OPTIONS", "/v1/tasks", "GET, HEAD, POST"),
        ("TRACE", "/v1/tasks", "GET, HEAD, POST"),
        ("BREW", "/livez", "GET, HEAD"),
    ):
        answer = await door.client.request(method, path)
        problem(answer, 405, "method-not-allowed")
        assert allowed in answer.headers["allow"]


# Health


async def test_alive_without_any_server() -> None:
    async with open_door(Settings(database_url=NOBODY, redis_url="redis://127.0.0.1:1/0")) as client:
        answer = await client.get("/livez")

    assert (answer.status_code, answer.json()) == (200, {"status": "alive"})


async def test_ready_when_postgres_and_its_tables_answer(door: Door) -> None:
    answer = await door.client.get("/readyz")

    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "checks": {"postgres": "ok", "redis": "ok"}}


async def test_ready_without_redis_since_tasks_wait_in_the_outbox(settings: Settings) -> None:
    for redis_url in ("redis://127.0.0.1:1/0", ""):
        async with open_door(replace(settings, redis_url=redis_url)) as client:
            answer = await client.get("/readyz")
            assert answer.status_code == 200
            assert answer.json()["checks"]["redis"] != "ok"


async def test_ready_soon_though_redis_hangs(settings: Settings) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        async with open_door(replace(settings, redis_url=f"redis://127.0.0.1:{port}/0")) as client:
            answer = await asyncio.wait_for(client.get("/readyz"), 4)

    assert answer.status_code == 200
    assert answer.json()["checks"] == {"postgres": "ok", "redis": "no answer within 0.8 s"}


async def test_not_ready_without_postgres(settings: Settings) -> None:
    async with open_door(replace(settings, database_url=NOBODY)) as client:
        answer = await client.get("/readyz")

    assert answer.status_code == 503
    assert answer.json()["status"] == "not ready"
    assert "refused" in answer.json()["checks"]["postgres"]
    assert "secret" not in answer.text


async def test_not_ready_without_tables_and_nothing_is_a_fault_of_ours(settings: Settings) -> None:
    async with open_door(replace(settings, schema="elsewhere")) as client:
        ready = await client.get("/readyz")
        door = Door(client, None)  # type: ignore[arg-type] # no road without tables
        answers = [await door.submit("k"), await client.get(f"/v1/tasks/{uuid4()}"), await door.post_batch(raw(line()))]

    assert ready.status_code == 503
    assert "elsewhere" in ready.json()["checks"]["postgres"]
    for answer in answers:
        problem(answer, 503, "unavailable")


async def test_while_postgres_is_away_clients_are_asked_to_come_again(own_postgres: Postgres) -> None:
    upgrade(own_postgres.url)
    settings = Settings(database_url=own_postgres.url)
    async with open_road(settings, TRAVEL) as road, open_door(settings) as client:
        door = Door(client, road)
        first = await door.submit("first")
        await asyncio.to_thread(own_postgres.stop)

        away = [
            await door.submit("first"),
            await door.submit("second"),
            await door.post_batch(raw(line())),
            await client.get(first.headers["location"]),
            await client.get(f"{first.headers['location']}/events"),
        ]
        ready, alive = await client.get("/readyz"), await client.get("/livez")
        await asyncio.to_thread(own_postgres.start)
        back = [await door.submit("first"), await door.submit("second"), await door.submit("second")]

        for answer in away:
            problem(answer, 503, "unavailable")
            assert int(answer.headers["retry-after"]) > 0
        assert (ready.status_code, alive.status_code) == (503, 200)
        assert [answer.status_code for answer in back] == [202, 202, 202]
        assert [answer.headers.get("idempotent-replayed") for answer in back] == ["true", None, "true"]
        assert (await client.get("/readyz")).status_code == 200
        await road.engine.dispose()
        assert await road.count() == {"task": 2, "outbox": 2, "intake_key": 2}


async def test_whoever_repeats_until_202_has_one_task_however_often_postgres_dies(own_postgres: Postgres) -> None:
    upgrade(own_postgres.url)
    settings = Settings(database_url=own_postgres.url)
    async with open_road(settings, TRAVEL) as road, open_door(settings) as client:
        door = Door(client, road)
        refused = 0

        async def client_of_ours(name: int) -> set[str]:
            nonlocal refused
            accepted = set()
            for number in range(40):
                while (answer := await door.submit(f"{name}-{number}")).status_code != 202:
                    problem(answer, 503)
                    refused += 1
                    await asyncio.sleep(0.05)
                accepted.add(answer.json()["task_id"])
            return accepted

        async def trouble() -> None:
            for _ in range(2):
                await asyncio.sleep(0.15)
                await asyncio.to_thread(own_postgres.kill)
                await asyncio.to_thread(own_postgres.start)

        *accepted, _ = await asyncio.gather(*(client_of_ours(name) for name in range(20)), trouble())

        tasks = {task_id for one in accepted for task_id in one or ()}
        assert refused
        assert len(tasks) == 800
        await road.engine.dispose()
        assert {str(task_id) for (task_id,) in await road.ask("select task_id from postroad.task")} == tasks
        assert await road.violated() == {}


async def test_requests_at_once_share_commits(door: Door) -> None:
    # From then on it is known whether keys are required: a thousand together would wait long for a look.
    await door.submit(payload="the first")
    answers = await asyncio.gather(*(door.submit(payload=number) for number in range(1000)))

    assert {answer.status_code for answer in answers} == {202}
    ((commits, tasks),) = await door.road.ask("select count(distinct xid), count(*) from postroad.outbox")
    assert tasks == 1001
    assert commits <= 101


async def test_a_refused_task_does_not_spoil_the_commit_that_it_shares(door: Door) -> None:
    own = str(uuid4())
    await door.submit("a", task_id=own)

    answers = await asyncio.gather(
        *(door.submit(f"k{number}", **({"task_id": own} if number % 50 == 7 else {})) for number in range(200))
    )

    assert Counter(answer.status_code for answer in answers) == {202: 196, 409: 4}
    assert await door.road.count("task") == {"task": 197}
