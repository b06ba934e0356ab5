"""Somebody's HTTP service, as it is called: what is sent and how it is signed, the connections, what comes back."""

import base64
import contextlib
import hashlib
import hmac
import io
import json
import os
import re
import socket
import time
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from importlib.metadata import version
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from ..core.errors import DeclarationError, first_line
from ..core.http_stage import HttpStage, check_url, is_refused, secret_bytes, shown
from ..core.pipeline import Stage
from ..core.settings import expanded
from ..core.task import Task
from .runner import RESULT_LIMIT

CONNECT = 2.0
"""Seconds that a connection may take."""

AT_ONCE = 64 * 1024
"""Bytes of a body that are handed to a connection at once: more would hold up the event loop."""

FAULT_LIMIT = 64 * 1024
"""Bytes that are read of an answer that tells of a failure."""

AFTER_LEAST, AFTER_MOST = timedelta(seconds=1), timedelta(hours=1)
"""The bounds of what a service may ask for by ``Retry-After``."""

AGENT: Final = f"postroad/{version('postroad')}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: ``body`` is cut at the limit, and then ``is_too_large``."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_too_large: bool

    @property
    def is_json(self) -> bool:
        """True if it says that its body is JSON."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        return kind == "application/json" or kind.endswith("+json")

    @property
    def retry_after(self) -> timedelta | None:
        """The delay that it asks for, within bounds."""
        asked = self.headers.get("retry-after", "").strip()
        try:
            seconds = float(asked) if re.fullmatch(r"\d{1,9}", asked) else _seconds_until(asked)
        except (ValueError, TypeError):
            return None
        return min(max(timedelta(seconds=seconds), AFTER_LEAST), AFTER_MOST)

    def __str__(self) -> str:
        """In one line: the status, and what the body says of it."""
        name = HTTPStatus(self.status).phrase if self.status in HTTPStatus._value2member_map_ else ""
        said = self._said()
        return f"{self.status} {name}".strip() + (f": {said}" if said else "")

    def _said(self) -> str:
        text = self.body.decode("utf-8", "replace").strip()
        if self.is_json:
            with contextlib.suppress(ValueError, RecursionError):
                problem = json.loads(text)
                if isinstance(problem, dict):
                    parts = [problem.get(name) for name in ("title", "detail", "error", "message")]
                    text = ": ".join(part for part in parts if isinstance(part, str)) or text
        return (text.splitlines() or [""])[0][:300]


class RefusedAddressError(OSError):
    """The name of the service leads to an address that must not be called."""


class Service:
    """The service of ``stage``, over connections of its own. ``close`` it at the end.

    Raises ``DeclarationError`` if a variable that its URL, headers or secrets name is not set, or to what will not do.
    """

    def __init__(self, stage: Stage, declared: HttpStage, *, public_url: str = "") -> None:
        self._stage = stage
        self._declared = declared
        self._public_url = public_url.rstrip("/")
        try:
            self._url = expanded(declared.url)
            check_url(self._url, allow_link_local=declared.allow_link_local)
            self._headers = {name: expanded(value) for name, value in declared.headers.items()}
            self.secrets = [secret_bytes(expanded(secret)) for secret in declared.secrets]
        except ValueError as error:
            raise DeclarationError(f"stage {stage.full_name!r}: {error}") from None
        for name, value in self._headers.items():
            if not value.isascii() or not value.isprintable():
                raise DeclarationError(f"stage {stage.full_name!r}: the header {name!r} must be printable ASCII")
        self._client: aiohttp.ClientSession | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The host that its URL has, and the port."""
        parts = check_url(self._url, allow_link_local=True)
        return parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme]

    @property
    def shown_url(self) -> str:
        """Its URL, as logs and errors may show it; with the names of variables, not their values."""
        return shown(self._declared.url)

    def request(self, task: Task, traceparent: str) -> tuple[dict[str, str], bytes]:
        """Headers and body of the request for an attempt on ``task``, signed as of now."""
        body = json.dumps(task.document(), separators=(",", ":")).encode()
        headers = self._headers | request_headers(self._stage, task, body, self.secrets, traceparent)
        if task.lease:
            headers |= {"postroad-lease": task.lease, "prefer": "respond-async"}
            if self._public_url:
                headers["postroad-callback"] = f"{self._public_url}/v1/leases/{task.lease}"
        return headers, body

    async def post(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """What the service answers. Raises ``aiohttp.ClientError``, ``TimeoutError`` or ``OSError``."""
        try:
            return await self.post_once(headers, body)
        except (aiohttp.ServerDisconnectedError, ConnectionResetError):
            # It closed a connection that was idle just when we used it; that is no sign of trouble, and to be
            # asked twice does it no harm, by the idempotency key.
            return await self.post_once(headers, body)

    async def post_once(self, headers: Mapping[str, str], body: bytes | AsyncIterable[bytes]) -> Answer:
        """As ``post``, but a connection that was closed is an error; ``body`` may come in pieces."""
        if isinstance(body, bytes) and len(body) > AT_ONCE:
            data: Any = io.BytesIO(body)
        else:
            data = body
        async with self._session().post(self._url, data=data, headers=headers, allow_redirects=False) as response:
            limit = RESULT_LIMIT if response.status < 300 else FAULT_LIMIT
            chunks: list[bytes] = []
            size = 0
            async for chunk in response.content.iter_any():
                chunks.append(chunk)
                size += len(chunk)
                if size > limit:
                    break  # the rest is not read, and the connection not used again
            names = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, names, b"".join(chunks)[:limit], size > limit)

    async def close(self) -> None:
        """Close the connections."""
        if self._client:
            await self._client.close()

    def _session(self) -> aiohttp.ClientSession:
        if self._client is None:
            resolver = None if self._declared.allow_link_local else GuardedResolver()
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, resolver=resolver, ttl_dns_cache=10),
                timeout=aiohttp.ClientTimeout(total=self._stage.timeout.total_seconds(), sock_connect=CONNECT),
                # Uncompressed: of what is sent small, nobody knows how large it will be.
                auto_decompress=False,
                headers={"accept-encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._client


class GuardedResolver(AbstractResolver):
    """Looks names up, and refuses those that lead to an address that must not be called.

    Here, and not before, since a name may lead elsewhere the next time. Addresses in a URL are checked with the URL.
    """

    def __init__(self) -> None:
        self._resolver = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of ``host``. Raises ``OSError``."""
        found = await self._resolver.resolve(host, port, family)
        for one in found:
            if is_refused(ip_address(one["host"].partition("%")[0])):
                raise RefusedAddressError(f"{host} leads to {one['host']}, which must not be called")
        return found

    async def close(self) -> None:
        """Nothing is held."""
        await self._resolver.close()


def request_headers(
    stage: Stage, task: Task, body: bytes, secrets: Sequence[bytes], traceparent: str
) -> dict[str, str]:
    """The headers of the request for an attempt on ``task``: CloudEvents in its binary form, and ours."""
    headers = {
        "accept": "application/json",
        "content-type": "application/json",
        "user-agent": AGENT,
        "ce-specversion": "1.0",
        "ce-id": task.idempotency_key,
        "ce-source": f"/pipelines/{quote(task.pipeline)}",
        "ce-type": f"postroad.stage.{stage.name}",
        "ce-subject": str(task.task_id),
        "ce-time": task.created_at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "idempotency-key": f'"{task.idempotency_key}"',
        "postroad-attempt": str(task.attempt),
        "postroad-max-attempts": str(stage.retries + 1),
        "postroad-timeout": f"{stage.timeout.total_seconds():g}",
        "traceparent": traceparent,
    }
    if secrets:
        headers |= signature(task.idempotency_key, int(time.time()), body, secrets)
    return headers


def signature(message: str, timestamp: int, body: bytes, secrets: Sequence[bytes]) -> dict[str, str]:
    """The headers by which a service knows that a request is ours, and from when: the Standard Webhooks scheme.

    HMAC-SHA256 over ``message.timestamp.body``; one for each of ``secrets``, so that they can be changed one after the
    other on both sides. https://github.com/standard-webhooks/standard-webhooks
    """
    signed = b".".join([message.encode(), str(timestamp).encode(), body])
    codes = [base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode() for secret in secrets]
    return {
        "webhook-id": message,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{code}" for code in codes),
    }


def _seconds_until(date: str) -> float:
    return (parsedate_to_datetime(date) - datetime.now(UTC)).total_seconds()


def told(error: Exception, within: timedelta) -> str:
    """What a call that failed says, in one line, without the URL's secrets; ``within`` is how long it might take."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return f"no connection within {CONNECT:g} s"
        case TimeoutError():
            return f"no answer within {within.total_seconds():g} s"
        case aiohttp.ClientPayloadError():
            return f"the answer broke off: {first_line(error)}"
        case aiohttp.ClientConnectorError():
            cause = error.os_error
            # asyncio's own words repeat the address.
            number = cause.errno if cause.errno and cause.errno > 0 else None
            reason = os.strerror(number) if number else cause.strerror or first_line(cause)
            return f"cannot connect to {error.host}:{error.port}: {reason}"
        case _:
            return shown(first_line(error))
