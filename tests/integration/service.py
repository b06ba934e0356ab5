"""Somebody's HTTP service, as an asyncio server in the test's process: what it answers, the test says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answers = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Called:
    """One request that the service has had."""

    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Service:
    """Answers what ``answers`` says; keeps the requests."""

    answers: Answers
    calls: list[Called] = field(default_factory=list)
    url: str = ""
    _runner: web.AppRunner | None = None
    _port: int = 0

    async def start(self) -> None:
        """Listen: on a free port, and after a stop on the same one."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self.url = f"http://127.0.0.1:{self._port}/work"

    async def stop(self) -> None:
        """Refuse connections from now on, and close those that there are."""
        if self._runner:
            await self._runner.cleanup()
        self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(
            Called({name.lower(): value for name, value in request.headers.items()}, await request.read())
        )
        return await self.answers(request)


@contextlib.asynccontextmanager
async def serving(answers: Answers) -> AsyncIterator[Service]:
    """A service that answers so."""
    service = Service(answers)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


@contextlib.asynccontextmanager
async def raw_service(answer: Callable[[asyncio.StreamWriter], Awaitable[Any]]) -> AsyncIterator[str]:
    """The URL of a service that, once it has been asked, writes bytes as it likes."""

    answering: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        answering.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await reader.readuntil(b"\r\n\r\n")
                await answer(writer)
        finally:
            writer.close()
            answering.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering)
