"""What the sync and the async client have in common of HTTP: the terms of httpx2 in those of a conversation."""

import ssl
from typing import TypedDict

import httpx2

from .address import Address
from .exchange import Answer, Lost, Request

CONNECT = 5.0
"""Seconds to connect in."""

IDLE = 3.0
"""Seconds that a connection is kept for the next request: less than a server keeps it, who closes it unasked."""


class Options(TypedDict):
    """Of an httpx2 client, sync or async."""

    headers: dict[str, str]
    limits: httpx2.Limits
    trust_env: bool
    verify: ssl.SSLContext | bool


class Arguments(TypedDict):
    """Of one request."""

    content: bytes | None
    headers: dict[str, str]
    timeout: httpx2.Timeout


def options(address: Address, tls: ssl.SSLContext | None) -> Options:
    """How a client for ``address`` is made. The environment does not count: neither its proxies nor .netrc."""
    limits = httpx2.Limits(keepalive_expiry=IDLE)
    # Certificates are not even loaded where there is no TLS: that takes longer than a hundred requests.
    verify = tls or address.url.startswith("https:")
    return {"headers": dict(address.headers), "limits": limits, "trust_env": False, "verify": verify}


def arguments(request: Request) -> Arguments:
    """How ``request`` is sent."""
    timeout = httpx2.Timeout(request.silence, connect=CONNECT, pool=None)
    return {"content": request.body, "headers": dict(request.headers), "timeout": timeout}


def answer(response: httpx2.Response, body: bytes) -> Answer:
    """What has come."""
    return Answer(response.status_code, {name.lower(): value for name, value in response.headers.items()}, body)


def lost(error: httpx2.RequestError) -> Lost:
    """That nothing has come. What is our own fault is raised."""
    if isinstance(error, httpx2.LocalProtocolError | httpx2.UnsupportedProtocol):
        raise error
    unsent = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
    return Lost(str(error) or type(error).__name__, was_sent=not isinstance(error, unsent))
