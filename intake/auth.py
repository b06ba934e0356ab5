"""Who may do what at the door: the guard of an endpoint.

A request brings its key as ``Authorization: Bearer prk_…``. The endpoint finds who that is by ``caller_of``.
"""

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..core import metrics
from .endpoint import Endpoint
from .keyring import ANYBODY, Caller, Keyring
from .problems import Problem
from .quota import Quota, fields, refusal
from .served import served

log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]


class Guard:
    """Lets requests through to an endpoint: those with a good key, of its scope, within its rate."""

    def __init__(self, keyring: Keyring, quota: Quota) -> None:
        self._keyring = keyring
        self._quota = quota

    def route(self, endpoint: Endpoint) -> Route:
        """``endpoint`` for those who may ask it."""
        handle = endpoint.handle
        if endpoint.scope:
            handle = served(endpoint, self._protect(handle, endpoint.scope, counts_lines=endpoint.counts_lines))
        return Route(endpoint.path, _asgi(handle), methods=[endpoint.method], name=endpoint.name)

    def _protect(self, handler: Handler, scope: str, *, counts_lines: bool) -> Handler:
        """``handler`` for those whose key has ``scope``.

        One that ``counts_lines`` says by ``count`` how many requests it stands for; any other is one.
        """

        async def guarded(request: Request) -> Response:
            caller = await self._find(request)
            request.state.caller = caller
            try:
                if not counts_lines and await self.count(request, 1) == 0:
                    raise refusal(caller, request.state.grant)
                if scope not in caller.scopes:
                    raise _lacks(caller, scope)
                response = await handler(request)
            except Problem as problem:
                response = problem.response()
                if scope == "submit":
                    metrics.rejected(problem.slug)
            if caller.rate is not None and (grant := getattr(request.state, "grant", None)):
                response.headers.update(fields(caller.rate, grant))
            if scope == "operate":
                log.info(
                    "%s %s by %s: %d",
                    request.method, request.url.path, caller.actor or "somebody without a key", response.status_code,
                )  # fmt: skip
            return response

        return guarded

    async def count(self, request: Request, requests: int) -> int:
        """How many of so many requests the rate of the caller's key grants."""
        grant = await self._quota.take(caller_of(request), requests)
        request.state.grant = grant
        return requests if grant is None else grant.granted

    async def _find(self, request: Request) -> Caller:
        given = request.headers.getlist("authorization")
        scheme, _, key = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        caller = await self._keyring.find(key.strip() if scheme.lower() == "bearer" else None)
        if caller is None:
            raise Problem(
                HTTPStatus.UNAUTHORIZED,
                "unauthorized",
                # The same words whatever is wrong with it: nobody is to learn which keys there are, or were.
                "a key is required that is good: Authorization: Bearer prk_…",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return caller


def caller_of(request: Request) -> Caller:
    """Who asks."""
    caller: Caller = getattr(request.state, "caller", ANYBODY)
    return caller


def forbidden(caller: Caller, pipeline: str) -> Problem:
    """403: the caller's key is not for ``pipeline``, whether there is one or not."""
    return Problem(
        HTTPStatus.FORBIDDEN, "forbidden", f"the key {caller.name!r} is not good for the pipeline {pipeline[:63]!r}"
    )


def _asgi(handler: Handler) -> ASGIApp:
    """``handler`` as an application: a function would be wrapped once more to catch what is caught further out."""

    class Answering:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            response = await handler(Request(scope, receive, send))
            await response(scope, receive, send)

    return Answering()


def _lacks(caller: Caller, scope: str) -> Problem:
    return Problem(
        HTTPStatus.FORBIDDEN,
        "forbidden",
        f"the key {caller.name!r} lacks the scope {scope}",
        headers={"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'},
        members={"scope": scope},
    )
