"""Who looks: a key in a cookie, and the proof that a form came from one of our own pages.

The cookie holds the key itself, as a client holds it: that only its SHA-256 is in Postgres is worth more than a session
that could be made from it. So a key that is revoked or expires ends the session at the next request, in every process.

A form carries a token that is made of two cookies, which no other site can read or send (``SameSite=Strict``); and
browsers say where a request comes from.
"""

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from ..intake.keyring import Caller, Keyring
from ..intake.problems import Problem
from ..intake.requests import read_body

KEY_COOKIE = "postroad_key"
FORM_COOKIE = "postroad_form"

LIFE = 12 * 3600
"""Seconds after which a session ends, a working day."""

FORM = "application/x-www-form-urlencoded"

FORM_LIMIT = 64 * 1024
"""Bytes of a form: a few words."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks at a page, and what the forms in it must carry."""

    caller: Caller
    form_secret: str
    token: str
    is_new: bool
    """The cookie with ``form_secret`` is still to be set."""
    has_session: bool

    @property
    def may_operate(self) -> bool:
        """True if actions are shown."""
        return "operate" in self.caller.scopes


class Sessions:
    """Finds who looks. ``mode`` is the setting ``auth``."""

    def __init__(self, keyring: Keyring, mode: str) -> None:
        self._keyring = keyring
        self._mode = mode

    async def find(self, request: Request) -> Viewer | None:
        """Who looks; ``None`` if they must log in first. Raises a ``Problem``."""
        key = request.cookies.get(KEY_COOKIE)
        caller = await self._keyring.find(key)
        if caller is None:
            return None
        if caller.key_id is None and self._mode != "off" and not _is_this_machine(request.url.hostname):
            # Or a page of another site, whose name is made to lead here, could act for whoever has it open.
            raise Problem(
                HTTPStatus.FORBIDDEN, "forbidden",
                "there are no keys, so the dashboard is for this machine alone: open it as http://localhost, or make"
                " a key with postroad key create",
            )  # fmt: skip
        if "read" not in caller.scopes:
            raise Problem(HTTPStatus.FORBIDDEN, "forbidden", f"the key {caller.name!r} lacks the scope read")
        return self._viewer(request, caller, key if caller.key_id else None)

    def stranger(self, request: Request) -> Viewer:
        """Somebody who is not known, before the form with which they log in."""
        return self._viewer(request, Caller(scopes=frozenset()), None)

    async def log_in(self, key: str) -> Caller | None:
        """Whose key this is; ``None`` if it is none that is good. Raises a ``Problem`` if Postgres is away."""
        caller = await self._keyring.find(key)
        return caller if caller and caller.key_id else None

    def _viewer(self, request: Request, caller: Caller, key: str | None) -> Viewer:
        given = request.cookies.get(FORM_COOKIE, "")
        is_new = len(given) != 43
        secret = secrets.token_urlsafe(32) if is_new else given
        token = hmac.new(secret.encode(), (key or "").encode(), hashlib.sha256).hexdigest()
        return Viewer(caller, secret, token, is_new, has_session=key is not None)


async def read_form(request: Request, viewer: Viewer) -> Mapping[str, str]:
    """The fields of a form of ours, without those left empty. Raises a ``Problem``: 403 if it is not one of ours."""
    if not _is_same_origin(request):
        raise Problem(HTTPStatus.FORBIDDEN, "forbidden", "the form came from another site")
    body = await read_body(request, media_type=FORM, limit=FORM_LIMIT)
    try:
        fields = dict(parse_qsl(body.decode(), errors="strict", max_num_fields=50))
    except ValueError as error:
        raise Problem(HTTPStatus.BAD_REQUEST, "malformed", "the form cannot be read") from error
    if viewer.is_new or not hmac.compare_digest(fields.pop("token", "").encode(), viewer.token.encode()):
        raise Problem(
            HTTPStatus.FORBIDDEN,
            "forbidden",
            "the form is out of date, or your browser sends no cookies: load it again",
        )
    return {name: value.strip().replace("\x00", "") for name, value in fields.items() if value.strip()}


def remember_form(request: Request, response: Response, viewer: Viewer) -> None:
    """Set the cookie that forms are checked against, if the browser has none yet."""
    if viewer.is_new:
        _set(request, response, FORM_COOKIE, viewer.form_secret, LIFE)


def begin(request: Request, response: Response, key: str) -> None:
    """Begin a session with ``key``."""
    _set(request, response, KEY_COOKIE, key, LIFE)


def end(request: Request, response: Response) -> None:
    """End it: the browser forgets both cookies."""
    for name in (KEY_COOKIE, FORM_COOKIE):
        _set(request, response, name, "", 0)


def _set(request: Request, response: Response, name: str, value: str, life: int) -> None:
    response.set_cookie(
        name, value, max_age=life, path="/ui", secure=request.url.scheme == "https", httponly=True, samesite="strict"
    )


def _is_same_origin(request: Request) -> bool:
    """True if the browser says that one of our own pages sent this; all that can send a form say one or the other."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return site == "same-origin"
    # Over plain HTTP, but from this machine, browsers send the origin alone.
    return origin is not None and urlsplit(origin).netloc == request.headers.get("host")


def _is_this_machine(host: str | None) -> bool:
    if host is None:
        return False
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
