"""Batches are accepted while they come: in groups, and what was accepted is told whatever happens to the rest."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from postroad import Settings
from postroad.core.servers import Postgres
from postroad.intake.app import create_app
from postroad.intake.batch import GROUP
from postroad.intake.submit import Submitter
from postroad.migrations import upgrade
from postroad.outbox.submit import Submission, accept
from tests.integration.door import NOTHING, Door, line, open_door, open_port, problem, raw
from tests.integration.road import TRAVEL, Road, open_road

PARSERS = pytest.mark.parametrize("parser", [H11Protocol, HttpToolsProtocol], ids=["h11", "httptools"])


def body(count: int, first: int = 0) -> bytes:
    """So many lines, of payloads from ``first`` on."""
    return b"".join(raw(line(payload=number)) + b"\n" for number in range(first, first + count))


def told(answer: httpx2.Response) -> list[dict[str, Any]]:
    """The answers to the lines of a batch that was not refused as a whole."""
    assert answer.status_code == 200, answer.text[:300]
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(one) for one in answer.text.splitlines()]


def statuses(answers: Iterable[dict[str, Any]]) -> list[int]:
    return [answer["status"] for answer in answers]


async def post(door: Door, pieces: AsyncIterator[bytes], **headers: str) -> httpx2.Response:
    """Send a body whose length is not told beforehand."""
    headers = {"Content-Type": "application/x-ndjson"} | headers
    return await door.client.post("/v1/tasks:batch", content=pieces, headers=headers)


async def until_accepted(road: Road, count: int) -> None:
    async with asyncio.timeout(30):
        while (await road.count("task"))["task"] < count:  # noqa: ASYNC110 - Postgres tells nobody
            await asyncio.sleep(0.01)


async def cut(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


# As it comes


async def test_a_group_is_accepted_before_the_next_one_comes(door: Door) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            yield body(GROUP, number * GROUP)
            await until_accepted(door.road, (number + 1) * GROUP)
        yield body(7, 3 * GROUP)

    answers = told(await post(door, pieces()))

    assert statuses(answers) == [202] * (3 * GROUP + 7)
    assert [answer["line"] for answer in answers] == list(range(1, 3 * GROUP + 8))
    rows = await door.road.ask("select task_id::text from postroad.task order by payload::int")
    assert [answer["task_id"] for answer in answers] == [task_id for (task_id,) in rows]


async def test_where_a_batch_is_cut_on_its_way_makes_no_difference(door: Door) -> None:
    text = b"\n".join([raw(line(payload="é€")), b"", raw(line()) + b"\r", b"\r", b"{", b"", raw(line())])
    whole = [(answer["line"], answer["status"]) for answer in told(await door.post_batch(text))]

    dripped = told(await post(door, cut(*(bytes([byte]) for byte in text))))

    assert [(answer["line"], answer["status"]) for answer in dripped] == whole
    assert whole == [(1, 202), (3, 202), (5, 400), (7, 202)]
    # json.dumps escapes; this one has the characters themselves, cut in two.
    text = json.dumps(line(payload="é€"), ensure_ascii=False).encode()
    (answer,) = told(await post(door, cut(*(bytes([byte]) for byte in text))))
    assert await door.road.task(answer["task_id"], "payload") == ("é€",)


async def test_a_line_beyond_the_limit_is_passed_over_to_its_end(settings: Settings, road: Road) -> None:
    async with open_door(replace(settings, body_limit=2048)) as client:
        long = [b"x" * 2000] * 1000
        answers = told(await post(Door(client, road), cut(body(1), *long, b"\n" + body(1), *long)))

    assert [(answer["line"], answer["status"]) for answer in answers] == [(1, 202), (2, 413), (3, 202), (4, 413)]
    assert not any("rest" in answer for answer in answers)


# When it cannot be read to its end


def check_end(answer: httpx2.Response, accepted: int, status: int) -> dict[str, Any]:
    """Check that so many lines were accepted, and the rest was not taken; what is said of that."""
    *answers, last = told(answer)
    assert statuses(answers) == [202] * accepted
    assert (last["line"], last["status"], last["rest"]) == (accepted + 1, status, True)
    assert answer.headers["connection"] == "close"
    return last


async def test_of_too_many_lines_the_first_10_000_are_accepted(door: Door) -> None:
    last = check_end(await door.post_batch(body(10_300)), 10_000, 413)

    assert "10,000 lines" in last["detail"]
    assert await door.road.count("task", "outbox") == {"task": 10_000, "outbox": 10_000}


@pytest.mark.parametrize("size", [1, 1000, 10_000_000])
async def test_of_too_many_bytes_the_lines_within_are_accepted(settings: Settings, road: Road, size: int) -> None:
    text = body(1500)
    limit = len(body(GROUP + 100)) + 5
    async with open_door(replace(settings, batch_limit=limit)) as client:
        pieces = cut(*(text[place : place + size] for place in range(0, len(text), size)))
        last = check_end(await post(Door(client, road), pieces), GROUP + 100, 413)

    assert f"{limit:,} bytes" in last["detail"]
    assert await road.count("task") == {"task": GROUP + 100}


async def test_of_one_that_stops_halfway_the_lines_that_have_come_are_accepted(settings: Settings, road: Road) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield body(GROUP + 20) + raw(line())[:10]
        await asyncio.Event().wait()

    async with open_door(replace(settings, request_time=timedelta(milliseconds=200))) as client:
        last = check_end(await post(Door(client, road), pieces()), GROUP + 20, 408)

    assert last["type"] == "/problems/too-slow"


@pytest.mark.parametrize("count", [0, GROUP - 1])
async def test_before_a_line_was_accepted_it_is_refused_as_a_whole(settings: Settings, road: Road, count: int) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield body(count) + b"{"
        await asyncio.Event().wait()

    async with open_door(replace(settings, request_time=timedelta(milliseconds=200), batch_limit=100_000)) as client:
        door = Door(client, road)
        problem(await post(door, slow()), 408, "too-slow")
        problem(await post(door, cut(body(count), b"x" * 100_001)), 413, "too-large")
        problem(await post(door, cut(b"x\n" * 10_001)), 413, "too-large")

    assert await road.count() == NOTHING


@PARSERS
async def test_who_sends_all_before_he_reads_hears_of_it(settings: Settings, road: Road, parser: type[Any]) -> None:
    settings = replace(settings, batch_limit=64 * 1024)
    text = body(100_000)
    head = b"POST /v1/tasks:batch HTTP/1.1\r\nHost: door\r\nContent-Type: application/x-ndjson\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n"

    app = create_app(settings)
    async with open_port(app, parser=parser) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text))
        await writer.drain()
        answer = await reader.read()
        writer.close()

    assert answer.startswith(b"HTTP/1.1 200 ")
    *answers, last = [json.loads(one) for one in answer.partition(b"\r\n\r\n")[2].splitlines()]
    assert len(answers) == last["line"] - 1 == (await road.count("task"))["task"]
    assert statuses(answers) == [202] * len(answers)
    assert (last["status"], last["rest"]) == (413, True)


@PARSERS
async def test_what_was_accepted_stays_if_the_client_goes(settings: Settings, road: Road, parser: type[Any]) -> None:
    head = b"POST /v1/tasks:batch HTTP/1.1\r\nHost: door\r\nContent-Type: application/x-ndjson\r\n"
    text = body(GROUP + 100)

    async with open_port(create_app(settings), parser=parser) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"Content-Length: 1000000\r\n\r\n" + text)
        await until_accepted(road, GROUP)
        writer.close()
        await writer.wait_closed()
        async with httpx2.AsyncClient() as client:
            assert (await client.get(f"http://127.0.0.1:{port}/livez")).status_code == 200

    assert await road.count("task") == {"task": GROUP}


# What holds for a line


async def test_the_rate_of_a_key_is_counted_group_by_group(door: Door) -> None:
    header = await door.key("submit", rate=f"{GROUP + 100}/h")

    answer = await door.post_batch(body(3 * GROUP), **header)

    assert statuses(told(answer)) == [202] * (GROUP + 100) + [429] * (2 * GROUP - 100)
    assert answer.headers["ratelimit"].startswith('"key";r=0;')
    assert int(answer.headers["retry-after"]) > 3500
    assert await door.road.count("task") == {"task": GROUP + 100}


async def test_if_no_line_is_granted_the_whole_is_refused_once_it_has_been_read(door: Door) -> None:
    header = await door.key("submit", rate="10/h")
    assert statuses(told(await door.post_batch(body(10), **header))) == [202] * 10
    is_read = False

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal is_read
        for _ in range(3):
            yield body(GROUP)
        is_read = True

    answer = await post(door, pieces(), **header)

    problem(answer, 429)
    assert int(answer.headers["retry-after"]) > 0
    assert answer.headers["ratelimit"].startswith('"key";r=0;')
    assert is_read


async def test_open_tasks_are_counted_once_over_all_groups(settings: Settings, road: Road) -> None:
    async with open_door(replace(settings, open_tasks_limit=GROUP + 200)) as client:
        answer = await Door(client, road).post_batch(body(2 * GROUP))

    assert statuses(told(answer)) == [202] * (GROUP + 200) + [429] * (GROUP - 200)
    assert 5 <= int(answer.headers["retry-after"]) <= 10


async def test_a_line_tells_who_has_submitted_it(door: Door) -> None:
    header = await door.key("submit")

    await door.post_batch(body(GROUP + 1), **header)

    assert await door.road.ask("select submitted_by, count(*) from postroad.task group by 1") == [
        ("key:shop", GROUP + 1)
    ]


# When something goes away


async def test_when_postgres_goes_in_the_middle_the_rest_is_not_tried(
    settings: Settings, own_postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    submit_many = Submitter.submit_many

    async def note(self: Submitter, submissions: Sequence[Submission]) -> Any:
        tried.append(len(submissions))
        return await submit_many(self, submissions)

    monkeypatch.setattr(Submitter, "submit_many", note)
    upgrade(own_postgres.url)
    settings = replace(settings, database_url=own_postgres.url)
    async with open_road(settings, TRAVEL) as road, open_door(settings) as client:

        async def pieces() -> AsyncIterator[bytes]:
            yield body(GROUP)
            await until_accepted(road, GROUP)
            await asyncio.to_thread(own_postgres.stop)
            yield body(GROUP, GROUP)
            yield b"{\n" + body(GROUP, 2 * GROUP)

        answer = await post(Door(client, road), pieces())
        await asyncio.to_thread(own_postgres.start)
        await road.engine.dispose()

        assert await road.count("task") == {"task": GROUP}
    assert statuses(told(answer)) == [202] * GROUP + [503] * (2 * GROUP + 1)
    assert answer.headers["retry-after"] == "2"
    assert tried == [GROUP, GROUP]


async def test_a_fault_of_ours_in_the_middle_hides_nothing(
    door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail_once(connection: Any, group: Sequence[Submission], *given: Any, **more: Any) -> Any:
        if any(submission.payload == str(GROUP + 3) for submission in group):
            raise RuntimeError("a fault")
        return await accept(connection, group, *given, **more)

    monkeypatch.setattr("postroad.intake.submit.accept", fail_once)

    answers = told(await door.post_batch(body(3 * GROUP)))

    assert statuses(answers) == [202] * (GROUP + 3) + [500] + [202] * (2 * GROUP - 4)
    assert answers[GROUP + 3]["type"] == "/problems/fault"
    assert "a fault of ours" in caplog.text
    assert await door.road.count("task") == {"task": 3 * GROUP - 1}
