"""Where the intake is, and what opens it: nothing of that which is secret is ever shown."""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from ..core.errors import SettingsError


class Address:
    """The URL of an intake, with the token for it, if it needs one."""

    def __init__(self, url: str, token: str | None = None) -> None:
        try:
            parts = urlsplit(url)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_url = False
        if not is_url or parts.query or parts.fragment:
            raise SettingsError(f"{_without_user(url)!r} is not of the form http://host:port")
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            raise SettingsError("a token is printable ASCII without blanks")
        self.url = f"{parts.scheme}{url[len(parts.scheme) :].rstrip('/')}"
        self._token = token

    def __str__(self) -> str:
        return _without_user(self.url)

    def __repr__(self) -> str:
        return f"{str(self)!r}" if self._token is None else f"{str(self)!r}, token='***'"

    @property
    def headers(self) -> Mapping[str, str]:
        """What each request carries."""
        return {} if self._token is None else {"Authorization": f"Bearer {self._token}"}


def _without_user(url: str) -> str:
    return re.sub(r"(?<=://)[^/]*@", "***@", url)
