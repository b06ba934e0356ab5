"""Shield: how long a body may be waited for."""

import asyncio
from datetime import timedelta

import pytest
from starlette.types import Message, Receive, Scope, Send

from postroad.intake.problems import Problem
from postroad.intake.shield import Shield

SCOPE = {
    "type": "http",
    "http_version": "1.1",
    "method": "POST",
    "path": "/",
    "headers": [(b"host", b"door")],
    "query_string": b"",
}
WITHIN = timedelta(milliseconds=500)


async def receive() -> Message:
    await asyncio.sleep(0.01)
    return {"type": "http.request", "body": b"x", "more_body": True}


async def send(message: Message) -> None:
    raise AssertionError


async def test_what_the_door_does_between_two_parts_is_none_of_the_clients_time() -> None:
    async def read_and_work(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await asyncio.sleep(WITHIN.total_seconds() * 1.2)
        await receive()

    await Shield(read_and_work, WITHIN)(SCOPE, receive, send)


async def test_one_who_drips_is_not_waited_for_whatever_the_door_does_between() -> None:
    parts = 0

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal parts
        while True:
            await receive()
            parts += 1
            await asyncio.sleep(0)

    async with asyncio.timeout(10):
        with pytest.raises(Problem, match="too-slow"):
            await Shield(read, WITHIN)(SCOPE, receive, send)

    assert parts
