"""How a request was served: its span and its line in the log."""

import logging
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from opentelemetry.trace import SpanKind
from starlette.requests import Request
from starlette.responses import Response

from ..core import telemetry
from .endpoint import Endpoint

log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]


def served(endpoint: Endpoint, handle: Handler) -> Handler:
    """``handle``, which tells of each request: in a span, if somebody collects them, and in the log at debug.

    The route is told and never the path, which may hold a token. Of a stream it ends when the answer begins.
    """
    name = f"{endpoint.method} {endpoint.path}"

    async def answered(request: Request) -> Response:
        if not telemetry.is_on() and not log.isEnabledFor(logging.DEBUG):
            return await handle(request)
        began = time.monotonic()
        given = request.headers.get("traceparent", "")
        parent = given if telemetry.is_valid(given) else None
        status, trace = HTTPStatus.INTERNAL_SERVER_ERROR.value, parent
        with telemetry.span(name, SpanKind.SERVER, parent, _asked(request, endpoint)) as span:
            trace = telemetry.current_traceparent() or parent
            try:
                response = await handle(request)
                status, trace = response.status_code, response.headers.get("traceparent", trace)
                return response
            finally:
                span.set_attribute("http.response.status_code", status)
                if status >= 500:
                    telemetry.fail(span, str(status), "")
                if log.isEnabledFor(logging.DEBUG):
                    _log(endpoint, status, trace, time.monotonic() - began)

    return answered


def _log(endpoint: Endpoint, status: int, trace: str | None, seconds: float) -> None:
    fields = {"method": endpoint.method, "route": endpoint.path, "status": status}
    took = {"duration_ms": round(seconds * 1000, 1)}
    traced = {"trace_id": telemetry.trace_id(trace)} if trace else {}
    log.debug("%s %s: %d", endpoint.method, endpoint.path, status, extra=fields | took | traced)


def _asked(request: Request, endpoint: Endpoint) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "http.request.method": endpoint.method,
        "http.route": endpoint.path,
        "url.scheme": request.scope["scheme"],
        "url.path": endpoint.path,
        "network.protocol.version": request.scope.get("http_version", ""),
        "user_agent.original": request.headers.get("user-agent", "")[:200],
    }
    if server := request.scope.get("server"):
        attributes["server.address"] = server[0]
        if server[1] is not None:
            attributes["server.port"] = server[1]
    return attributes
