"""HttpStage: a stage that is somebody's HTTP service, in any language."""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from .errors import DeclarationError
from .settings import VARIABLE

SECRET_PREFIX = "whsec_"

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OURS = re.compile(r"ce-|postroad-|webhook-|(content-(type|length)|host|idempotency-key|traceparent|connection)$")

_REFUSED = [
    ip_network(network)
    for network in (
        "169.254.0.0/16",  # link-local; the metadata of most clouds
        "fe80::/10",  # link-local
        "fd00:ec2::254/128",  # metadata of AWS
        "100.100.100.200/32",  # metadata of Alibaba Cloud
        "0.0.0.0/8",
        "::/128",
        "224.0.0.0/4",  # multicast
        "ff00::/8",
    )
]


@dataclass(frozen=True, slots=True)
class HttpStage:
    """A stage whose work a service does: each attempt is a ``POST`` to ``url``, and the answer its outcome.

    ::

        orders.add("notify", HttpStage("https://notify.internal/orders"), after="pack", retries=8, timeout=10)

    ``url``, ``headers`` and ``secrets`` may hold ``${NAME}``, which the worker replaces from its environment, so that
    neither code nor file needs to know them. ``secrets`` sign every request by the Standard Webhooks scheme: one, or
    two while they are changed (``whsec_`` and 24 to 64 bytes in base64). ``headers`` are sent with every request.

    ``completion`` is ``"answer"`` if the answer says that the work is done, ``"callback"`` if a 202 says that it has
    begun and the service will report to the intake, within ``callback_timeout``, how it ended.

    ``allow_link_local``: also call addresses that only this machine's network or its cloud answers at, such as
    169.254.169.254. Raises ``DeclarationError``.
    """

    url: str = field(repr=False)
    secrets: Sequence[str] = field(default=(), repr=False, kw_only=True)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, kw_only=True)
    completion: Literal["answer", "callback"] = field(default="answer", kw_only=True)
    callback_timeout: timedelta = field(default=timedelta(hours=1), kw_only=True)
    allow_link_local: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "secrets", (self.secrets,) if isinstance(self.secrets, str) else tuple(self.secrets))
        if not isinstance(self.url, str) or not self.url:
            raise DeclarationError("url must be the URL of a service")
        if not VARIABLE.search(self.url):
            check_url(self.url, allow_link_local=self.allow_link_local)
        if len(self.secrets) > 2:
            raise DeclarationError("secrets are one, or two while they are changed")
        for secret in self.secrets:
            if not VARIABLE.search(secret):
                secret_bytes(secret)
        for name, value in self.headers.items():
            if not isinstance(name, str) or not _HEADER.fullmatch(name):
                raise DeclarationError(f"{name!r} is no name of a header")
            if _OURS.match(name.lower()):
                raise DeclarationError(f"the header {name!r} is set by postroad itself")
            if not isinstance(value, str) or not value.isascii() or not value.isprintable():
                raise DeclarationError(f"the header {name!r} must be printable ASCII")
        if self.completion not in ("answer", "callback"):
            raise DeclarationError(f"completion is 'answer' or 'callback', not {self.completion!r}")
        if not timedelta(seconds=1) <= self.callback_timeout <= timedelta(days=30):
            raise DeclarationError("callback_timeout must be a second to 30 days")

    @property
    def hands_over(self) -> timedelta | None:
        """How long the service has to report, if it does so later."""
        return self.callback_timeout if self.completion == "callback" else None

    def __str__(self) -> str:
        return f"POST {shown(self.url)}"


def shown(url: str) -> str:
    """``url`` as logs and errors may show it: without a user, a password or a query."""
    return re.sub(r"\?.*", "?***", re.sub(r"(^|://)[^/]*@", r"\1***@", url, count=1), count=1, flags=re.DOTALL)


def check_url(url: str, *, allow_link_local: bool = False) -> SplitResult:
    """The parts of ``url``, if it is one that may be called. Raises ``DeclarationError``, without its password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise DeclarationError(f"{shown(url)!r} is no URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DeclarationError(f"{shown(url)!r} is no URL of a service such as https://host/path")
    if any(ord(character) <= 32 or ord(character) == 127 for character in url) or parts.fragment:
        raise DeclarationError(f"{shown(url)!r} holds a space or a fragment, which no request can")
    try:
        address = ip_address(parts.hostname)
    except ValueError:
        if parts.hostname.replace(".", "").isdigit():
            # What looks up no name would take it for an address, and for another one than we can check.
            raise DeclarationError(f"{shown(url)!r} names an address that is not written as four numbers") from None
        return parts
    if not allow_link_local and is_refused(address):
        raise DeclarationError(
            f"{shown(url)!r} is an address of this machine's own network or its cloud; allow_link_local allows it"
        )
    return parts


def is_refused(address: IPv4Address | IPv6Address) -> bool:
    """True for the addresses at which no service of ours lives, but the metadata and credentials of a cloud may."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])
        if inner:
            return is_refused(inner)
        if address in ip_network("64:ff9b::/96"):
            return is_refused(IPv4Address(int(address) & 0xFFFF_FFFF))
    return any(address.version == network.version and address in network for network in _REFUSED)


def secret_bytes(secret: str) -> bytes:
    """The bytes of a secret of the Standard Webhooks scheme. Raises ``DeclarationError``, without the secret."""
    try:
        if not secret.startswith(SECRET_PREFIX):
            raise ValueError
        value = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (ValueError, binascii.Error):
        raise DeclarationError(f"a secret is {SECRET_PREFIX} and 24 to 64 bytes in base64") from None
    if not 24 <= len(value) <= 64:
        raise DeclarationError(f"a secret is {SECRET_PREFIX} and 24 to 64 bytes in base64, not {len(value)} bytes")
    return value
