"""Pages as HTML: the templates, how they write numbers and moments, and what browsers may do with them."""

import hashlib
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from .session import Viewer, remember_form

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing that a payload, a label or an error says can run, load or be sent anywhere."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    # With no-referrer browsers hide from us, too, where a form came from.
    "Referrer-Policy": "same-origin",
}

_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".LICENSE": "text/plain"}


def span(seconds: float | None) -> str:
    """A time as people say it: ``40 ms``, ``3.2 s``, ``12 min``, ``5 h``, ``3 d``."""
    if seconds is None:
        return "–"
    seconds = max(seconds, 0.0)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 or seconds < 0.00005 else f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    for size, unit in ((60, "min"), (3600, "h")):
        if seconds < size * 100:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def number(value: float | None) -> str:
    """A number with its thousands apart, whole or with a digit that tells."""
    if value is None:
        return "–"
    if value == 0 or value >= 10 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def count(counted: Mapping[str, Any] | None) -> str:
    """``{"count", "capped"}``: ``10,000+`` if there are at least so many."""
    if counted is None:
        return "–"
    return f"{counted['count']:,}{'+' if counted['capped'] else ''}"


def moment(value: datetime | str | None) -> str:
    """A moment, in UTC to the millisecond."""
    if value is None:
        return "–"
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    return value.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def ago(value: datetime | str | None) -> str:
    """How long ago a moment was, or how far ahead it is."""
    if value is None:
        return "–"
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    seconds = (datetime.now(UTC) - value).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def address(path: str, **query: Any) -> str:
    """``path`` with those of ``query`` that are given."""
    given = [(name, value) for name, value in query.items() if value not in (None, "")]
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


@cache
def asset(name: str) -> tuple[bytes, str, str]:
    """A file of ``static/``, its media type, and a digest of it. Raises ``KeyError`` if there is none."""
    folder = files(__package__ or "").joinpath("static")
    if name not in {file.name for file in folder.iterdir()}:
        raise KeyError(name)
    body = folder.joinpath(name).read_bytes()
    return body, _KINDS[name[name.rindex(".") :]], hashlib.sha256(body).hexdigest()[:12]


def asset_url(name: str) -> str:
    """Where it is; another address once it has changed, so that browsers can keep it for good."""
    return f"/ui/static/{name}?{asset(name)[2]}"


def answer_asset(name: str) -> Response | None:
    """A file of ``static/``; ``None`` if there is none of that name."""
    try:
        body, kind, _ = asset(name)
    except KeyError:
        return None
    return Response(body, media_type=kind, headers={"Cache-Control": "public, max-age=31536000, immutable"})


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__ or "", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "span": span, "number": number, "count": count, "moment": moment, "ago": ago, "round1": _round,
        "capfirst": _capfirst,
    }  # fmt: skip
    environment.globals |= {"address": address, "asset": asset_url}
    return environment


def render(
    request: Request, viewer: Viewer, template: str, *, status: HTTPStatus = HTTPStatus.OK, **values: Any
) -> Response:
    """The page of a template, in which all that is put in is escaped."""
    said = {"viewer": viewer, "here": request.url.path, "query": request.query_params}
    body = _environment().get_template(template).render(said | values)
    response = HTMLResponse(body, int(status), headers=dict(HEADERS))
    remember_form(request, response, viewer)
    return response


def _capfirst(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _round(value: float) -> float:
    """To a tenth, for the coordinates of drawings."""
    return math.floor(value * 10 + 0.5) / 10
