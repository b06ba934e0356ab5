"""What a client may take of the door: large heads, slow ones, slow bodies, many connections; what browsers are told."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from postroad import Settings
from postroad.intake.app import create_app
from postroad.intake.connection import BEYOND, limited
from postroad.intake.shield import HEAD, HEADERS
from tests.integration.door import Door, line, open_door, open_port, problem, raw
from tests.integration.road import Road

WITHIN = timedelta(milliseconds=400)
GET = b"GET /livez HTTP/1.1\r\nHost: door\r\n"
POST = b"POST /v1/tasks HTTP/1.1\r\nHost: door\r\nContent-Type: application/json\r\n"


@pytest.fixture(params=[H11Protocol, HttpToolsProtocol], ids=["h11", "httptools"])
def parser(request: pytest.FixtureRequest) -> type[Any]:
    """One of uvicorn's parsers."""
    chosen: type[Any] = request.param
    return chosen


ALONE = Settings(
    database_url="postgresql://postgres@127.0.0.1:1/postgres",
    auth="off", open_tasks_limit=0, outbox_age_limit=timedelta(),
)  # fmt: skip
"""Settings of a door that asks no server."""


@asynccontextmanager
async def open_limited(parser: type[Any], *, settings: Settings = ALONE, most: int = 100) -> AsyncIterator[int]:
    """A door behind our limits of connections, which has little patience; its port."""
    settings = replace(settings, request_time=WITHIN)
    async with open_port(create_app(settings), parser=limited(parser, within=WITHIN, most=most)) as port:
        yield port


async def exchange(port: int, *parts: bytes, pause: float = 0.0) -> tuple[bytes, float]:
    """Send the parts, with pauses between them; what came until the other side closed, and after how many seconds."""
    started = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = bytearray()

    async def read() -> None:
        # One who is cut off while it talks is told so by a reset: what came before is what counts.
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65536):
                answer.extend(chunk)

    reading = asyncio.create_task(read())
    try:
        for part in parts:
            if reading.done():
                break
            writer.write(part)
            await asyncio.sleep(pause)
        async with asyncio.timeout(10):
            await reading
        return bytes(answer), time.monotonic() - started
    finally:
        reading.cancel()
        writer.close()


def status(answer: bytes) -> int:
    """The status of an answer as it came; its body must be a problem, and its headers those of every answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *fields = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
    assert headers["content-type"] == "application/problem+json"
    assert {name: headers[name.lower()] for name in HEADERS} == dict(HEADERS)
    code = int(first.split()[1])
    assert json.loads(body)["status"] == code
    return code


async def test_one_who_says_nothing_is_not_waited_for(parser: type[Any]) -> None:
    async with open_limited(parser) as port:
        answer, seconds = await exchange(port)

    assert answer == b""
    assert 0.3 < seconds < 5


async def test_a_head_that_drips_ends_with_408(parser: type[Any]) -> None:
    drips = [GET, *(b"X-%d: a\r\n" % number for number in range(200))]

    async with open_limited(parser) as port:
        answer, seconds = await exchange(port, *drips, pause=0.05)

    assert status(answer) == 408
    assert 0.3 < seconds < 5


async def test_the_second_request_of_a_connection_is_not_waited_for_longer(parser: type[Any]) -> None:
    drips = [GET + b"\r\n", *([b"G"] + [b"E"] * 100)]

    async with open_limited(parser) as port:
        answer, seconds = await exchange(port, *drips, pause=0.05)

    assert answer.startswith(b"HTTP/1.1 200 ")
    # Or what it says is no method of HTTP.
    assert b"HTTP/1.1 408 " in answer or b"HTTP/1.1 400 " in answer
    assert seconds < 5


async def test_a_body_that_drips_ends_with_408(parser: type[Any]) -> None:
    body = raw(line())

    async with open_limited(parser) as port:
        for head, drips in (
            (b"Content-Length: %d\r\n\r\n" % len(body), [body[place : place + 1] for place in range(len(body) - 1)]),
            (b"Transfer-Encoding: chunked\r\n\r\n", [b"1\r\n \r\n"] * 100),
        ):
            answer, seconds = await exchange(port, POST + head, *drips, pause=0.05)

            assert status(answer) == 408
            assert 0.3 < seconds < 5


async def test_a_body_that_nobody_asked_for_is_not_waited_for(parser: type[Any]) -> None:
    drips = [GET + b"Transfer-Encoding: chunked\r\n\r\n", *([b"1\r\n \r\n"] * 200)]

    async with open_limited(parser) as port:
        answer, seconds = await exchange(port, *drips, pause=0.05)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert seconds < 5


@pytest.mark.parametrize(
    "make",
    [
        lambda size: [GET + b"X-Large: " + b"a" * size + b"\r\n\r\n"],
        lambda size: [GET, *([b"X-Large: " + b"a" * 1000 + b"\r\n"] * (size // 1000)), b"\r\n"],
        lambda size: [b"GET /v1/tasks?" + b"a" * size + b" HTTP/1.1\r\nHost: door\r\n\r\n"],
        lambda size: [b"GET /livez HTTP/1.1\r\nHost: door\r\nX-Endless: " + b"a" * size],
    ],
    ids=["one header", "many headers", "path", "no end"],
)
async def test_a_head_that_is_too_large_is_refused(parser: type[Any], make: Callable[[int], list[bytes]]) -> None:
    async with open_limited(parser) as port:
        for size in (HEAD + 1000, 20 * HEAD):
            answer, _ = await exchange(port, *make(size), pause=0.001)

            assert status(answer) == 431
        fine, _ = await exchange(port, GET + b"Connection: close\r\nX-Large: " + b"a" * (HEAD - 1000) + b"\r\n\r\n")

    assert fine.startswith(b"HTTP/1.1 200 ")


async def test_a_large_body_beside_a_small_head_is_none_of_the_heads_business(
    settings: Settings, parser: type[Any], road: Road
) -> None:
    body = raw(line(payload="a" * 500_000))

    async with open_limited(parser, settings=settings) as port:
        answer, _ = await exchange(port, POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    assert answer.startswith(b"HTTP/1.1 202 ")


async def test_beyond_the_most_connections_only_probes_are_answered(
    settings: Settings, parser: type[Any], road: Road
) -> None:
    async with open_limited(parser, settings=settings, most=3) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for _, writer in held:
            writer.write(POST + b"Content-Length: 100\r\n\r\n")
        await asyncio.sleep(0.05)
        refused, _ = await exchange(port, POST + b"Content-Length: 0\r\n\r\n")
        probed, _ = await exchange(port, GET + b"Connection: close\r\n\r\n")

        assert status(refused) == 503
        assert b"Retry-After: 1" in refused or b"retry-after: 1" in refused
        assert probed.startswith(b"HTTP/1.1 200 ")

        for _, writer in held:
            writer.close()
        async with httpx2.AsyncClient() as client:
            answer = await client.post(f"http://127.0.0.1:{port}/v1/tasks", json=line())
        assert answer.status_code == 202


async def test_far_beyond_them_nobody_is_told_why() -> None:
    async with open_limited(HttpToolsProtocol, most=1) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(BEYOND + 1)]
        answer, _ = await exchange(port, GET + b"\r\n")

        assert answer == b""
        for _, writer in held:
            writer.close()


UNREADABLE = {
    "an unknown coding": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n",
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n123",
    "no length": POST + b"Content-Length: many\r\n\r\n",
    "a size of a chunk that is none": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "a space before a colon": GET + b"X-Space : 1\r\n\r\n",
    "a NUL": GET + b"X-Control: \x00\r\n\r\n",
    "no name": GET + b": 1\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 100 + b"\r\n\r\n",
    "a path that is not escaped": b"GET /v1/t\xc3\xa4sks HTTP/1.1\r\nHost: door\r\n\r\n",
}


@pytest.mark.parametrize("request_", UNREADABLE.values(), ids=UNREADABLE)
async def test_what_is_no_request_is_a_problem_too_and_ends_the_connection(parser: type[Any], request_: bytes) -> None:
    async with open_limited(parser) as port:
        answer, seconds = await exchange(port, request_)

    assert status(answer) == 400
    assert b"this is no request of HTTP/1.1: " in answer
    assert b"Connection: close" in answer
    assert seconds < 5


async def test_a_length_beside_chunks_is_refused_and_what_follows_is_not_read(parser: type[Any]) -> None:
    both = GET + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET + b"\r\n"

    async with open_limited(parser) as port:
        answer, _ = await exchange(port, both)

    assert status(answer) == 400


async def test_a_request_has_one_host_that_is_a_name_or_an_address(parser: type[Any]) -> None:
    ask = b"GET /livez HTTP/1.1\r\nConnection: close\r\n"
    bad = [b"", b"Host: a\r\nHost: a\r\n", b"Host: a b\r\n", b"Host: a/b\r\n", b"Host: user@door\r\n"]
    good = [b"door", b"door:8080", b"[::1]:8080", b"10.0.0.1", b"xn--dr-fka.example.", b""]

    async with open_limited(parser) as port:
        for host in bad:
            assert status((await exchange(port, ask + host + b"\r\n"))[0]) == 400
        for host in good:
            assert (await exchange(port, ask + b"Host: %s\r\n\r\n" % host))[0].startswith(b"HTTP/1.1 200 ")


async def test_a_request_of_http_1_0_needs_no_host(parser: type[Any]) -> None:
    async with open_limited(parser) as port:
        answer, _ = await exchange(port, b"GET /livez HTTP/1.0\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_of_codings_for_the_way_only_chunked_is_understood(parser: type[Any]) -> None:
    async with open_limited(parser) as port:
        answer, _ = await exchange(port, POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")

    # The parser in Python does not know of any other.
    assert status(answer) in (400, 501)


@pytest.mark.parametrize("wish", [b"h2c", b"websocket"])
async def test_who_would_like_another_protocol_is_answered_in_this_one_with_the_body_and_what_follows(
    settings: Settings, parser: type[Any], road: Road, wish: bytes
) -> None:
    wishes = (
        b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\nUpgrade: %s\r\n" % wish
    )
    body = raw(line())
    length, chunk = b"Content-Length: %d\r\n\r\n" % len(body), b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body)
    last = GET + b"Connection: close\r\n\r\n"

    async with open_limited(parser, settings=settings) as port:
        at_once, _ = await exchange(port, (POST + wishes + length + body) * 2 + last)
        in_parts, _ = await exchange(
            port, POST[:9], POST[9:] + wishes, chunk + body[:5], body[5:] + b"\r\n0\r\n\r\n", last, pause=0.05
        )

    assert at_once.count(b"HTTP/1.1 202 ") == 2
    assert in_parts.count(b"HTTP/1.1 202 ") == 1
    for answer in (at_once, in_parts):
        assert answer.count(b"HTTP/1.1 200 ") == 1
    assert await road.count("task") == {"task": 3}


async def test_connect_is_not_possible(parser: type[Any]) -> None:
    async with open_limited(parser) as port:
        answer, _ = await exchange(port, b"CONNECT door:80 HTTP/1.1\r\nHost: door:80\r\nConnection: close\r\n\r\n")

    assert status(answer) in (400, 404, 405)


async def test_every_answer_has_the_headers_that_browsers_heed(
    settings: Settings, road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_door(settings) as client:
        door = Door(client, road)
        answers = [
            await door.submit(),
            await client.get("/livez"),
            await client.get("/nowhere"),
            await client.put("/livez"),
            await door.post(b"{"),
            await door.post_batch(raw(line())),
            await client.get("/v1/tasks/1", headers={"X-Large": "a" * HEAD}),
        ]

    statuses = [202, 200, 404, 405, 400, 200, 431]
    assert [answer.status_code for answer in answers] == statuses
    for answer in answers:
        assert {name: answer.headers[name] for name in HEADERS} == dict(HEADERS)


async def test_also_one_that_is_a_fault_of_ours(
    settings: Settings, road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr("postroad.intake.views.find_task", fail)
    app = create_app(settings)
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://door") as client,
    ):
        answer = await client.get("/v1/tasks/01890a5d-ac96-774b-bcce-b302099a8057")

    problem(answer, 500, "fault")
    assert {name: answer.headers[name] for name in HEADERS} == dict(HEADERS)
