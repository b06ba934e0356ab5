"""What one client's connection may take of us: how long the head of a request may be, and take; how many there may be.

Uvicorn waits for the head of a request for ever, and with one of its parsers keeps as much of it as comes. Both parsers
are wrapped alike, by what they share: the transport, and the ``cycle`` of the request that is being answered.
"""

import asyncio
import json
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from .problems import MEDIA_TYPE, Problem, malformed, overloaded
from .shield import HEAD, HEADERS, IS_WHOLE, secured, too_large_head, too_late
from .upgrade import staying

PROBES = ("/livez", "/readyz")
"""What is answered however many connections there are: nobody is to restart us for being busy."""

READ_SIZE = 512 * 1024
"""More bytes than are read from a connection at once."""

BEYOND = 100
"""Connections beyond the most that are still told why, and may be probes; more are closed at once."""

LINGER = 1.0
"""Seconds for which one who was refused may go on talking."""


def limited(protocol: type[Any], *, within: timedelta, most: int) -> type[Any]:
    """``protocol``, one of uvicorn's for HTTP, with limits.

    A head that has not come ``within`` its time, counted from the connection or from its first byte, is answered with
    408, and a connection that brings nothing closed. Requests on more than ``most`` connections get 503.
    """

    class Limited(staying(protocol)):  # type: ignore[misc]
        app: ASGIApp

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._head = 0
            self._is_refused = False
            self._late: asyncio.TimerHandle | None = self.loop.call_later(within.total_seconds(), self._end)
            if len(self.connections) > most + BEYOND:
                transport.abort()
            elif len(self.connections) > most:
                self.app = _busy(self.app)

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._is_refused:
                return
            super().data_received(data)
            if self.cycle is not None and not self.cycle.more_body:
                self.cycle.scope[IS_WHOLE] = True
            if self.transport.is_closing() or (self.cycle is not None and not self.cycle.response_complete):
                self._forget()
                return
            self._head += len(data)
            if self._head > HEAD:
                self._refuse(too_large_head())
            elif self._late is None:
                self._late = self.loop.call_later(within.total_seconds(), self._end)

        def send_400_response(self, msg: str) -> None:
            # Called by uvicorn while it handles what its parser has raised, which says more than ``msg``.
            problem = malformed(f"this is no request of HTTP/1.1: {sys.exception()}")
            self.transport.write(_raw(replace(problem, headers={"Connection": "close"})))
            self.transport.close()

        def _forget(self) -> None:
            """The head is there, or nobody waits for it any more."""
            self._head = 0
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def _end(self) -> None:
            if self._head:
                self._refuse(too_late("head"))
            elif not self.transport.is_closing():
                self.transport.close()

        def _refuse(self, problem: Problem) -> None:
            self._forget()
            if self.transport.is_closing():
                return
            self._is_refused = True
            self.transport.write(_raw(problem))
            if self.transport.can_write_eof():
                # What still comes is read and dropped for a while: closed at once, the answer may never arrive.
                self.transport.write_eof()
                self._late = self.loop.call_later(LINGER, self.transport.close)
            else:
                self.transport.close()

    return Limited


def _busy(app: ASGIApp) -> ASGIApp:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await app(scope, receive, send)
            return
        response = overloaded("connections", "there are too many connections; try again soon", after=1).response()
        response.headers["Connection"] = "close"
        await response(scope, receive, secured(send))

    return refuse


def _raw(problem: Problem) -> bytes:
    """``problem`` as bytes, for a request of which there is nothing that an application could answer."""
    body = json.dumps(problem.body()).encode()
    headers = {"Content-Type": MEDIA_TYPE, "Content-Length": str(len(body)), **HEADERS, **problem.headers}
    lines = [f"HTTP/1.1 {int(problem.status)} {problem.status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
