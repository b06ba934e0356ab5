"""What holds for every request and answer: the size of the head, the time for the body, headers that browsers heed."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .head import fault_of_head
from .problems import Problem

HEAD = 16 * 1024
"""Bytes that the path, the query and the headers of a request may have together."""

LEAST_RATE = 32 * 1024
"""Bytes of a body for which a client gets a second more: a large batch may come over a slow line."""

HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""What every answer has that does not say otherwise: it is for programs, and for the one who asked."""

_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


IS_WHOLE = "postroad.is_whole"
"""In the scope of a request whose body is there already: nobody need wait for it, and no clock need be set."""


class Shield:
    """The middleware around all endpoints. ``within`` is how long a body may be waited for, to begin with."""

    def __init__(self, app: ASGIApp, within: timedelta) -> None:
        self._app = app
        self._within = within.total_seconds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        problem = too_large_head() if head_size(scope) > HEAD else fault_of_head(scope)
        app = problem.response() if problem else self._app
        await app(scope, receive if scope.get(IS_WHOLE) else self._timed(receive), secured(send))

    def _timed(self, receive: Receive) -> Receive:
        clock = asyncio.get_running_loop().time
        left, is_whole = self._within, False

        async def receive_in_time() -> Message:
            nonlocal left, is_whole
            if is_whole:
                return await receive()
            # What we take between two parts, to commit what has come of a batch, is none of the client's time.
            started = clock()
            try:
                async with asyncio.timeout_at(started + left):
                    message = await receive()
            except TimeoutError:
                left = 0.0
                raise too_late("body") from None
            left += len(message.get("body", b"")) / LEAST_RATE - (clock() - started)
            is_whole = not message.get("more_body", False)
            return message

        return receive_in_time


def secured(send: Send) -> Send:
    """``send`` that adds ``HEADERS`` to the answer."""

    async def send_secured(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(header for header in _HEADERS if header[0] not in given)]
        await send(message)

    return send_secured


def head_size(scope: Scope) -> int:
    """Bytes of the path, the query and the headers."""
    headers = sum(len(name) + len(value) for name, value in scope["headers"])
    return headers + len(scope.get("raw_path") or b"") + len(scope["query_string"])


def too_large_head() -> Problem:
    """431: the head of the request has more than ``HEAD`` bytes."""
    return Problem(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        "head-too-large",
        f"the path and headers have more than {HEAD:,} bytes together",
        headers={"Connection": "close"},
    )


def too_late(part: str) -> Problem:
    """408: ``part`` of the request took too long to come."""
    return Problem(
        HTTPStatus.REQUEST_TIMEOUT,
        "too-slow",
        f"the {part} of the request did not come in time",
        headers={"Connection": "close"},
    )
