"""Where a service that is tested reports how its work ended: the intake's door for that, without a database."""

import asyncio
import contextlib
import json
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..core.errors import SettingsError
from ..intake.operations import read_completion, read_extension, read_failure
from ..intake.problems import Problem, answer_problem

Read = Callable[[Request], Awaitable[dict[str, Any]]]


class Listener:
    """Takes reports as the intake does, and keeps what each token's came to."""

    def __init__(self, url: str) -> None:
        self.url = url
        """What the service is told to be the URL of the intake."""
        self._reported: defaultdict[str, asyncio.Future[tuple[str, str]]] = defaultdict(
            asyncio.get_running_loop().create_future
        )

    async def report(self, token: str, within: timedelta) -> tuple[str, str]:
        """Wait for what is reported by ``token``: ``completed``, ``failed`` or ``rejected``, and that in words."""
        try:
            async with asyncio.timeout(within.total_seconds()):
                return await self._reported[token]
        except TimeoutError:
            return "failed", f"no report within {within.total_seconds():g} s"

    @property
    def app(self) -> Starlette:
        """The door."""
        return Starlette(
            routes=[
                Route("/v1/leases/{token}:complete", self._complete, methods=["POST"]),
                Route("/v1/leases/{token}:fail", self._fail, methods=["POST"]),
                Route("/v1/leases/{token}:extend", self._extend, methods=["POST"]),
            ],
            exception_handlers={Problem: answer_problem},
        )

    async def _complete(self, request: Request) -> Response:
        return await self._take(request, read_completion)

    async def _fail(self, request: Request) -> Response:
        return await self._take(request, read_failure)

    async def _extend(self, request: Request) -> Response:
        until = datetime.now(UTC) + await read_extension(request)
        return JSONResponse({"stage_run": "a test", "until": until.isoformat()})

    async def _take(self, request: Request, read: Read) -> Response:
        reported = self._reported[request.path_params["token"]]
        try:
            told = await read(request)
        except Problem as problem:
            if not reported.done():
                reported.set_result(("failed", f"a report that is refused: {int(problem.status)} {problem.detail}"))
            raise
        outcome = str(told.pop("outcome"))
        if not reported.done():
            reported.set_result((outcome, f"{outcome}: {json.dumps(told.get('result', told))}"[:300]))
        return JSONResponse({"stage_run": "a test", "outcome": outcome})


@contextlib.asynccontextmanager
async def listening(address: tuple[str, int], public_url: str | None) -> AsyncIterator[Listener]:
    """A listener at ``address``, on a free port for 0. Raises ``SettingsError``."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        opened = socket.create_server(address, family=family)
    except OSError as error:
        raise SettingsError(f"--listen: {error.strerror}") from error
    with opened:
        host, port = opened.getsockname()[:2]
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        listener = Listener(public_url or f"http://{where}")
        config = uvicorn.Config(listener.app, log_config=None, access_log=False, timeout_graceful_shutdown=1)
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[opened]))
        try:
            yield listener
        finally:
            server.should_exit = True
            await serving


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # an interrupt is for the command
