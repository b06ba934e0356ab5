"""Errors as RFC 9457 ``application/problem+json``: what is wrong, where, and what to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import quote
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

MEDIA_TYPE = "application/problem+json"

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
"""Kinds that draft-ietf-httpapi-ratelimit-headers-11 defines for everybody."""

TITLES = {QUOTA_EXCEEDED: "Quota Exceeded", REDUCED_CAPACITY: "Temporary Reduced Capacity"}
"""Their titles; our own kinds have that of their status."""

FAULTS = 20
"""The first so many faults of a request are named: more would make the answer larger than the request."""

LONGEST_POINTER = 200
"""Characters of a pointer in an answer: the names in a body may be as large as the body."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request. ``pointer`` is the JSON pointer of the member at fault, ``""`` for the body."""

    detail: str
    pointer: str = ""


@dataclass(eq=False)
class Problem(Exception):
    """An answer that is an error. ``slug`` names its kind: ``type`` is ``/problems/<slug>``, or a URL of that name."""

    status: HTTPStatus
    slug: str
    detail: str
    faults: Sequence[Fault] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """The problem as the JSON object that is sent."""
        body: dict[str, Any] = {
            "type": self.slug if self.slug.startswith("https://") else f"/problems/{self.slug}",
            "title": TITLES.get(self.slug, self.status.phrase),
            "status": int(self.status),
            "detail": self.detail,
        }
        if self.faults:
            body["errors"] = [
                # As the fragment of a URI (RFC 6901 §6).
                {"detail": fault.detail, "pointer": f"#{quote(_near(fault.pointer), safe='/~')}"}
                for fault in self.faults[:FAULTS]
            ]
        return body | dict(self.members)

    def response(self) -> Response:
        """The problem as an HTTP answer."""
        return JSONResponse(self.body(), int(self.status), headers=dict(self.headers), media_type=MEDIA_TYPE)


def _near(pointer: str) -> str:
    """``pointer``, or that of the nearest value around it that can be told."""
    return pointer if len(pointer) <= LONGEST_POINTER else pointer[: LONGEST_POINTER + 1].rpartition("/")[0]


def malformed(detail: str) -> Problem:
    """400: the body is no JSON, or a header is none that we understand."""
    return Problem(HTTPStatus.BAD_REQUEST, "malformed", detail)


def invalid(*faults: Fault) -> Problem:
    """422: JSON, but not what is asked for; names the faults."""
    detail = faults[0].detail if len(faults) == 1 else f"{len(faults):,} members are not valid"
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid", detail, faults)


def unavailable(what: str) -> Problem:
    """503: a server that we need is away; the client may try again, with the same idempotency key."""
    detail = f"{what} is not available; try again, with the same Idempotency-Key if you sent one"
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", detail, headers={"Retry-After": "2"})


def exceeded(policy: str, detail: str, *, after: int) -> Problem:
    """429: more than ``policy`` allows; the client may try again ``after`` so many seconds."""
    return Problem(
        HTTPStatus.TOO_MANY_REQUESTS,
        QUOTA_EXCEEDED,
        detail,
        headers={"Retry-After": str(after)},
        members={"violated-policies": [policy]},
    )


def overloaded(policy: str, detail: str, *, after: int) -> Problem:
    """503: we take nothing for now; the client may try again ``after`` so many seconds."""
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        REDUCED_CAPACITY,
        detail,
        headers={"Retry-After": str(after)},
        members={"violated-policies": [policy]},
    )


def fault(headers: Mapping[str, str] | None = None) -> Problem:
    """500: what should not happen has; we have logged it."""
    detail = "a fault of ours; the log of the intake says more"
    return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "fault", detail, headers=headers or {})


def no_task(task_id: UUID) -> Problem:
    """404: there is no such task."""
    return Problem(HTTPStatus.NOT_FOUND, "not-found", f"there is no task {task_id}")


async def answer_problem(request: Request, error: Exception) -> Response:
    """Starlette's handler for ``Problem``."""
    assert isinstance(error, Problem)
    return error.response()


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's handler for its own 404 and 405, so that they are problems too."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    details = {
        HTTPStatus.NOT_FOUND: f"there is nothing at {request.url.path}",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.method} is not possible at {request.url.path}",
    }
    slug = status.name.lower().replace("_", "-")
    headers = dict(error.headers or {})
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(sorted(_allowed(request)))
    return Problem(status, slug, details.get(status, error.detail), headers=headers).response()


def _allowed(request: Request) -> set[str]:
    """The methods of the path: Starlette names those of its first route alone."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in routes for method in route.methods}
