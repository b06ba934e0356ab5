"""Where the intake is, and what opens it: nothing of that which is secret is ever shown."""

import re
from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from ..core.errors import SettingsError


class Address:
    """The URL of an intake, with the token for it, if it needs one.

    A user and password in the URL are for what stands before the intake (``Basic``); ``url`` is without them.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        shown = re.sub(r"(^|://)[^/]*@", r"\1***@", url)
        try:
            parts = urlsplit(url)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_url = False
        if not is_url or parts.query or parts.fragment:
            raise SettingsError(f"{shown!r} is not of the form http://host:port")
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            raise SettingsError("a token is printable ASCII without blanks")
        user, _, host = parts.netloc.rpartition("@")
        if user and token is not None:
            raise SettingsError(f"{shown!r}: give a token, or a user and password, not both")
        self.url = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        self._credentials = f"Bearer {token}" if token is not None else _basic(user) if user else None

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"{self.url!r}" if self._credentials is None else f"{self.url!r}, token='***'"

    @property
    def headers(self) -> Mapping[str, str]:
        """What each request carries."""
        return {} if self._credentials is None else {"Authorization": self._credentials}


def _basic(user: str) -> str:
    name, _, password = user.partition(":")
    return f"Basic {b64encode(f'{unquote(name)}:{unquote(password)}'.encode()).decode()}"
