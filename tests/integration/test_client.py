"""The client and the intake, with a network between them that loses answers, and servers that come and go."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from postroad import Reject, Settings
from postroad.client import (
    AsyncClient,
    Client,
    InvalidRequestError,
    NewTask,
    Refused,
    Submitted,
    TaskStateError,
    UnansweredError,
    UnknownTaskError,
)
from postroad.core.task import Status
from postroad.intake.app import create_app
from tests.integration.door import open_port
from tests.integration.line import open_line
from tests.integration.proxy import LossyProxy
from tests.integration.road import Road, open_road, pipeline

ROOT = Path(__file__).parents[2]


@dataclass
class Way:
    """What stands before the intake: answers the first requests with ``answers`` instead of letting them in."""

    app: ASGIApp
    answers: list[Response] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    requests: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.requests += 1
            self.tokens.add(Request(scope).headers.get("authorization"))
            if self.answers:
                return await self.answers.pop(0)(scope, receive, send)
        await self.app(scope, receive, send)


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, port: int = 0) -> AsyncIterator[str]:
    """The URL of an app."""
    async with open_port(app, port=port) as opened:
        yield f"http://127.0.0.1:{opened}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def payloads(road: Road) -> list[Any]:
    return [row[0] for row in await road.ask("select payload from postroad.task order by payload")]


async def test_a_task_is_submitted_looked_up_and_cancelled(road: Road) -> None:
    own = uuid4()
    async with serving(create_app(road.settings)) as url, AsyncClient(url) as client:
        first = await client.submit("travel", {"to": "Rome"}, key='a "key"', labels={"team": "blue"})
        again = await client.submit("travel", {"to": "Rome"}, key='a "key"', labels={"team": "blue"})
        named = await client.submit("travel", None, task_id=own)
        task = await client.task(first.task_id)

        assert (again.task_id, first.is_replay, again.is_replay) == (first.task_id, False, True)
        assert named.task_id == own
        assert (task.payload, task.labels, task.status) == ({"to": "Rome"}, {"team": "blue"}, Status.PENDING)
        assert (task.trace_id, task.created_at) == (first.trace_id, first.created_at)
        assert [await client.cancel(own, by="ada", reason="rain") for _ in range(2)] == [True, False]
        assert [event.type async for event in client.follow(own)] == ["TaskCreated", "TaskCancelled"]
        with pytest.raises(InvalidRequestError, match="stands for task") as reused:
            await client.submit("travel", {"to": "Oslo"}, key='a "key"')
        assert reused.value.status == 422
        with pytest.raises(InvalidRequestError) as invalid:
            await client.submit("voyage", 1, labels={"a b": "c"}, deadline="tomorrow")
        assert set(invalid.value.faults) == {"/labels/a b", "/deadline"}
        with pytest.raises(UnknownTaskError, match="there is no task"):
            await client.task(uuid4())
        with pytest.raises(UnknownTaskError):
            await client.wait("../../readyz")
        with pytest.raises(TaskStateError, match="no dead"):
            await client.retry(first.task_id)


async def test_waiting_and_following_end_with_the_task(road: Road) -> None:
    async with serving(create_app(road.settings)) as url, AsyncClient(url) as client:
        submitted = await client.submit("travel", 1)
        with pytest.raises(TimeoutError, match="is pending"):
            await client.wait(submitted.task_id, timeout=0.2)
        waiting = asyncio.create_task(client.wait(submitted.task_id, timeout=30))
        events = client.follow(submitted.task_id)
        heard = [(await anext(events)).type]
        await road.complete(submitted.task_id)
        heard += [event.type async for event in events]

        task = await waiting
        assert (task.status, task.stages_done) == ("completed", ("pack", "ride", "rest", "arrive"))
        assert task.results["pack"] == {"by": "test"}
        assert heard == await road.events(submitted.task_id)


async def test_the_dead_stages_of_a_task_run_again(road: Road) -> None:
    task_id = await road.accept()
    await road.commit(task_id, "pack", Reject("torn"))
    async with serving(create_app(road.settings)) as url:
        with Client(url) as client:
            assert (await asyncio.to_thread(client.wait, task_id, timeout=30)).status == "failed"
            assert await asyncio.to_thread(client.retry, task_id, by="ada") == ["pack"]
            assert (await asyncio.to_thread(client.task, task_id)).status == "in_progress"


async def test_200_submissions_whose_answers_get_lost_are_200_tasks(road: Road) -> None:
    async with serving(create_app(road.settings)) as url:
        proxy = LossyProxy(url)
        async with proxy.serving(), AsyncClient(proxy.url) as client:
            proxy.lose("idempotency-key", times=100)
            submitted = await asyncio.gather(*(client.submit("travel", number) for number in range(200)))

    assert proxy.lost > 0
    assert sum(one.is_replay for one in submitted) > 0
    assert len({one.task_id for one in submitted}) == 200
    assert await payloads(road) == list(range(200))
    assert await road.violated() == {}


async def test_without_an_event_loop_lost_answers_double_nothing_either(road: Road) -> None:
    def submit(url: str) -> list[UUID]:
        with Client(url) as client:
            alone = [client.submit("travel", number).task_id for number in range(20)]
            proxy.lose("tasks:batch", times=2)
            many = client.submit_many("travel", iter(range(20, 40)), batch=7)
            return alone + [one.task_id for one in many if isinstance(one, Submitted)]

    async with serving(create_app(road.settings)) as url:
        proxy = LossyProxy(url)
        async with proxy.serving():
            proxy.lose("idempotency-key", times=5)
            task_ids = await asyncio.to_thread(submit, proxy.url)

    assert proxy.lost == 7
    assert len(set(task_ids)) == 40
    assert await payloads(road) == list(range(40))


async def test_an_intake_that_comes_back_is_gone_on_with(road: Road) -> None:
    port, waits = free_port(), list[str]()
    async with AsyncClient(f"http://127.0.0.1:{port}", on_wait=waits.append) as client:
        submitting = [asyncio.create_task(client.submit("travel", number)) for number in range(20)]
        await asyncio.sleep(2)
        assert waits
        assert not any(task.done() for task in submitting)
        async with serving(create_app(road.settings), port):
            await asyncio.gather(*submitting)

    assert await payloads(road) == list(range(20))


async def test_patience_has_an_end_and_the_key_goes_on(road: Road) -> None:
    port = free_port()
    async with AsyncClient(f"http://127.0.0.1:{port}", patience=0.2) as client:
        with pytest.raises(UnansweredError, match=f"the intake at http://127.0.0.1:{port} does not answer") as ended:
            await client.submit("travel", 1)
        assert not ended.value.may_have_happened
        async with serving(create_app(road.settings), port):
            assert (await client.submit("travel", 1, key=ended.value.key)).key == ended.value.key


async def test_429_and_503_are_waited_for_as_they_ask(road: Road) -> None:
    way = Way(create_app(road.settings))
    way.answers = [Response(status_code=429, headers={"Retry-After": "1"}), Response(status_code=503)]
    clock = asyncio.get_running_loop().time
    async with serving(way) as url, AsyncClient(url, token="prk_hidden") as client:
        began = clock()
        await client.submit("travel", 1)

        assert clock() - began >= 1
        assert way.requests == 3
        assert way.tokens == {"Bearer prk_hidden"}
        way.answers = [JSONResponse({"title": "Unauthorized", "detail": "no good"}, 401)]
        with pytest.raises(PermissionError, match="401 Unauthorized: no good"):
            await client.submit("travel", 1)
    assert await payloads(road) == [1]


async def test_each_item_of_many_has_its_answer_in_order(road: Road) -> None:
    def items() -> Iterator[Any]:
        for number in range(0, 2400, 4):
            yield number
            yield NewTask(number, key="x" * 300)
            yield b'{"payload": %d, "labels": {"own": "1"}}' % number
            yield b'{"payload": '

    async with serving(create_app(road.settings)) as url, AsyncClient(url) as client:
        outcomes = [one async for one in client.submit_many("travel", items(), labels={"run": "7"}, batch=100)]
        unknown = [one async for one in client.submit_many("voyage", [1])]

    assert [one.number for one in outcomes] == list(range(1, 2401))
    assert [isinstance(one, Refused) for one in outcomes] == [False, True, False, True] * 600
    refused = [one for one in outcomes if isinstance(one, Refused)]
    assert "/idempotency_key: " in refused[0].message
    assert "no JSON" in refused[1].message
    assert isinstance(unknown[0], Refused)
    assert "there is no pipeline 'voyage'" in str(unknown[0].error())
    labels = await road.ask("select labels, count(*)::int from postroad.task group by 1 order by 1")
    assert labels == [({"own": "1"}, 600), ({"run": "7"}, 600)]


async def test_the_same_run_again_doubles_nothing(road: Road) -> None:
    async with serving(create_app(road.settings)) as url, AsyncClient(url) as client:
        early = client.submit_many("travel", range(1000), run="r", batch=10)
        async with contextlib.aclosing(early):
            async for outcome in early:
                if outcome.number == 300:
                    break
        again = [one async for one in client.submit_many("travel", range(1000), run="r")]

    assert all(isinstance(one, Submitted) for one in again)
    assert sum(one.is_replay for one in again if isinstance(one, Submitted)) >= 300
    assert await payloads(road) == list(range(1000))


async def answer_lines(scope: Scope, receive: Receive, send: Send) -> None:
    """An intake that accepts all lines at once and keeps nothing."""
    if scope["type"] != "http":
        return
    count = (await Request(scope, receive).body()).count(b"\n") + 1
    line = f'{{"status":202,"task_id":"{uuid4()}","pipeline":"t","created_at":"2026-12-01T10:00:00Z","trace_id":"0"}}\n'
    await Response(line * count, media_type="application/x-ndjson")(scope, receive, send)


@pytest.mark.parametrize("kind", ["sync", "async", "async items"])
async def test_of_30_000_items_only_what_is_under_way_is_read(kind: str) -> None:
    read, ahead = 0, 0

    def items() -> Iterator[int]:
        nonlocal read
        for number in range(1, 30_001):
            read = number
            yield number

    async def async_items() -> AsyncIterator[int]:
        for item in items():
            yield item

    def count_sync(url: str) -> int:
        nonlocal ahead
        with Client(url) as client:
            for outcome in client.submit_many("travel", items()):
                ahead = max(ahead, read - outcome.number)
        return outcome.number

    async with serving(answer_lines) as url:
        if kind == "sync":
            last, room = await asyncio.to_thread(count_sync, url), 1000
        else:
            room = 5000  # four requests, and the next one
            async with AsyncClient(url) as client:
                async for outcome in client.submit_many("travel", items() if kind == "async" else async_items()):
                    ahead = max(ahead, read - outcome.number)
            last = outcome.number

    assert last == 30_000
    assert ahead < room


async def test_an_error_of_the_items_is_raised_after_the_answers_to_those_before(road: Road) -> None:
    def items() -> Iterator[int]:
        yield from range(25)
        raise ZeroDivisionError

    heard = []
    async with serving(create_app(road.settings)) as url, AsyncClient(url) as client:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - what comes before the error is looked at
            async for outcome in client.submit_many("travel", items(), batch=10):
                heard.append(outcome.number)

    assert heard == list(range(1, 21))
    assert await payloads(road) == list(range(20))


async def test_whoever_gives_up_leaves_nothing_running(road: Road) -> None:
    before = asyncio.all_tasks()
    async with AsyncClient(f"http://127.0.0.1:{free_port()}") as client:
        submitting = asyncio.create_task(anext(client.submit_many("travel", range(10_000))))
        await asyncio.wait([submitting], timeout=0.2)
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        assert asyncio.all_tasks() == before


# A stream of events, as an intake that has one sends it


@dataclass
class Streaming:
    """Sends the journey of a task as server-sent events, cut somewhere, and breaks off."""

    app: ASGIApp
    opened: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or Request(scope).headers.get("accept") != "text/event-stream":
            return await self.app(scope, receive, send)
        self.opened += 1
        sent: list[Any] = []

        async def collect(message: Any) -> None:
            sent.append(message)

        headers = [field for field in scope["headers"] if field[0] != b"accept"]
        await self.app({**scope, "headers": headers}, receive, collect)
        events = json.loads(sent[-1]["body"])["events"]
        text = "".join(f"id: {event['position']}\nevent: x\ndata: {json.dumps(event)}\n\n" for event in events).encode()

        async def chunks() -> AsyncIterator[bytes]:
            for start in range(0, len(text), 100):
                yield text[start : start + 100]

        await StreamingResponse(chunks(), media_type="text/event-stream")(scope, receive, send)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_stream_of_events_is_read_and_opened_again(road: Road, kind: str) -> None:
    task_id = await road.accept()
    streaming = Streaming(create_app(road.settings))

    def follow_sync(url: str) -> list[str]:
        with Client(url) as client:
            return [event.type for event in client.follow(task_id)]

    async def follow(url: str) -> list[str]:
        async with AsyncClient(url) as client:
            return [event.type async for event in client.follow(task_id)]

    async with serving(streaming) as url:
        following = asyncio.create_task(asyncio.to_thread(follow_sync, url) if kind == "sync" else follow(url))
        while streaming.opened < 2:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        await road.complete(task_id)
        heard = await following

    assert heard == await road.events(task_id)


# The pages


async def run(folder: Path, *command: str, **environment: str) -> str:
    """What a program in ``folder`` prints, which must end with 0."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )  # fmt: skip
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode()
    return printed.decode()


async def test_the_page_on_the_client_runs(settings: Settings, tmp_path: Path) -> None:
    page = (ROOT / "docs/client.md").read_text("utf-8")
    files = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL))
    for name, body in files.items():
        (tmp_path / name).write_text(body)
    orders = pipeline("orders", pack=(), ship="pack")

    async with open_line(settings, orders) as line, serving(create_app(settings)) as url:
        line.work()
        ordered, followed, imported = await asyncio.gather(
            *(run(tmp_path, sys.executable, "-W", "error", name, url) for name in files)
        )

    assert "completed {'pack': None, 'ship': None}" in ordered
    assert followed.splitlines()[0].startswith("TaskCreated ")
    assert "TaskCompleted" in followed.splitlines()[-1]
    assert imported.splitlines() == [
        "item 2502: a number is not finite, or too large for a double (at /payload/quantity)",
        "2501 accepted",
    ]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_the_requests_on_the_page_of_the_door_are_answered(settings: Settings, tmp_path: Path) -> None:
    page = (ROOT / "docs/http-api.md").read_text("utf-8")
    requests = re.findall(r"```sh\n(curl .*?)```", page, re.DOTALL)
    (tmp_path / ".curlrc").write_text("silent\nshow-error\nfail-with-body\nwrite-out = '\\n'\n")

    async with open_road(settings, pipeline("orders", pack=())) as road, serving(create_app(settings)) as url:
        task_id = await road.accept(pipeline("orders", pack=()))
        script = "set -eu\n" + "".join(requests).replace("localhost:8080", url.removeprefix("http://"))
        script = script.replace("wait=30", "wait=1")
        printed = await run(tmp_path, "bash", "-c", script, CURL_HOME=str(tmp_path), ID=str(task_id))

        assert len(requests) == 4
        assert '"headline":"pack is in the outbox since ' in printed
        assert "HTTP/1.1 202 Accepted" in printed
        assert "location: /v1/tasks/" in printed
        assert f'{{"task_id":"{task_id}","status":"cancelled","changed":true}}' in printed
        assert '{"matched":0,"requeued":0}' in printed
        assert await road.task(task_id, "status") == ("cancelled",)
