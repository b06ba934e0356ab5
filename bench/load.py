"""Requests from many connections at once, in a process of their own: what a client costs is not the door's cost."""

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Load:
    """How many requests were answered in how many seconds; ``statuses`` are those that were not wanted."""

    answered: int
    seconds: float
    statuses: dict[int, int]

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.answered / self.seconds


Make = Callable[[int], tuple[str, bytes]]
"""Of a number that is given once: the headers of a request, each ended by CRLF, and its body."""


def post(url: str, make: Make, *, connections: int, seconds: float, wanted: int) -> Load:
    """POST what ``make`` says to ``url`` over ``connections``, each one request after the other, for ``seconds``."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_run, (url, make, connections, seconds, wanted))


def _run(url: str, make: Make, connections: int, seconds: float, wanted: int) -> Load:
    return asyncio.run(_load(url, make, connections, seconds, wanted))


async def _load(url: str, make: Make, connections: int, seconds: float, wanted: int) -> Load:
    parts = urlsplit(url)
    head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
    numbers = iter(range(1 << 62))
    answered = 0
    statuses: dict[int, int] = {}
    began = time.monotonic()

    async def ask() -> None:
        nonlocal answered
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            while time.monotonic() - began < seconds:
                headers, body = make(next(numbers))
                writer.write(f"{head}{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                top = await reader.readuntil(b"\r\n\r\n")
                status = int(top[9:12])
                await _read_body(reader, top.lower())
                if status == wanted:
                    answered += 1
                else:
                    statuses[status] = statuses.get(status, 0) + 1
        finally:
            writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(ask())
    return Load(answered, time.monotonic() - began, statuses)


async def _read_body(reader: asyncio.StreamReader, top: bytes) -> None:
    place = top.find(b"content-length:")
    if place >= 0:
        await reader.readexactly(int(top[place + 15 : top.index(b"\r\n", place)]))
        return
    while size := int(await reader.readline(), 16):
        await reader.readexactly(size + 2)
    await reader.readline()
