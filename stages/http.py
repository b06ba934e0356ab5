"""A stage that is somebody's HTTP service: each attempt is a POST, and the answer its outcome."""

import base64
import contextlib
import hashlib
import hmac
import json
import logging
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from importlib.metadata import version
from ipaddress import ip_address
from typing import Any, Final, NoReturn
from urllib.parse import quote

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from opentelemetry.trace import SpanKind

from ..core import telemetry
from ..core.errors import DeclarationError, UnstorableError, first_line
from ..core.http_stage import HttpStage, check_url, is_refused, secret_bytes, shown
from ..core.jsontext import decode
from ..core.outcome import Reject, Retry, Snooze
from ..core.pipeline import Stage
from ..core.settings import expanded
from ..core.task import Task
from .breaker import Breaker
from .runner import RESULT_LIMIT

log = logging.getLogger(__name__)

CONNECT = 2.0
"""Seconds that a connection may take."""

SLACK = timedelta(seconds=1)
"""What an attempt may take beyond the call, for what is recorded before and after it."""

FAULT_LIMIT = 64 * 1024
"""Bytes that are read of an answer that tells of a failure."""

AFTER_LEAST, AFTER_MOST = timedelta(seconds=1), timedelta(hours=1)
"""The bounds of what a service may ask for by ``Retry-After``."""

AGENT: Final = f"postroad/{version('postroad')}"

_OF_THE_SERVICE = {401, 403, 405, 407, 429, 502, 503, 504}
"""Statuses that tell of the service, or of how we are set up to call it, and not of the task."""

_LATER = {404, 408, 409, 425}
"""Statuses with which another attempt may fare better."""


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


class AnswerError(Exception):
    """An answer that tells of a failure; kept with the attempt, with what it says in full."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer}\n{answer.body[:FAULT_LIMIT].decode('utf-8', 'replace')}")


class RefusedAddressError(OSError):
    """The name of the service leads to an address that must not be called."""


class HttpHandler:
    """Calls the service of ``stage``, over connections of its own. ``close`` it at the end."""

    def __init__(self, stage: Stage, service: HttpStage, breaker: Breaker, *, public_url: str = "") -> None:
        self._stage = stage
        self._public_url = public_url.rstrip("/")
        self._service = service
        self._breaker = breaker
        try:
            self._url = expanded(service.url)
            check_url(self._url, allow_link_local=service.allow_link_local)
            self._headers = {name: expanded(value) for name, value in service.headers.items()}
            self._secrets = [secret_bytes(expanded(secret)) for secret in service.secrets]
        except ValueError as error:
            raise DeclarationError(f"stage {stage.full_name!r}: {error}") from None
        for name, value in self._headers.items():
            if not value.isascii() or not value.isprintable():
                raise DeclarationError(f"stage {stage.full_name!r}: the header {name!r} must be printable ASCII")
        self._client: aiohttp.ClientSession | None = None

    async def run(self, task: Task) -> Any:
        """One attempt: the service's result. Raises ``Retry``, ``Snooze`` or ``Reject``."""
        if wait := await self._breaker.admit(self._stage.timeout + SLACK):
            raise Snooze(wait, f"the stage rests: {self._breaker.trouble}")
        was_closed = self._breaker.is_closed
        try:
            answer = await self._post(task)
        except aiohttp.ConnectionTimeoutError as error:
            await self._unavailable(f"no connection within {CONNECT:g} s", error, was_closed=was_closed)
        except TimeoutError as error:
            trouble = f"no answer within {self._stage.timeout.total_seconds():g} s"
            await self._breaker.failed(trouble, was_closed=was_closed)
            raise Retry(trouble) from error
        except aiohttp.ClientPayloadError as error:
            trouble = f"the answer broke off: {first_line(error)}"
            await self._breaker.failed(trouble, was_closed=was_closed)
            raise Retry(trouble) from error
        except (aiohttp.ClientError, OSError) as error:
            await self._unavailable(_told(error), error, was_closed=was_closed)
        return await self._heed(answer, was_closed=was_closed)

    async def close(self) -> None:
        """Close the connections."""
        if self._client:
            await self._client.close()

    async def _heed(self, answer: Answer, *, was_closed: bool) -> Any:
        """What ``answer`` makes of the attempt, and of the stage."""
        cause = AnswerError(answer)
        if 200 <= answer.status < 300:
            await self._breaker.answered(was_closed=was_closed)
            return self._result(answer)
        override = answer.headers.get("postroad-retry", "").strip().lower()
        if override not in ("yes", "no") and answer.status in _OF_THE_SERVICE:
            if answer.retry_after is not None and answer.status in (429, 503):
                await self._breaker.ask_less(answer.retry_after, str(answer), was_closed=was_closed)
                raise Snooze(answer.retry_after, str(answer))
            await self._unavailable(str(answer), cause, was_closed=was_closed)
        if answer.status >= 500:
            await self._breaker.failed(str(answer), was_closed=was_closed)
        else:
            await self._breaker.answered(was_closed=was_closed)
        if answer.status == 410 and not override:
            await self._breaker.gone(f"410 Gone from {shown(self._service.url)}")
            raise Snooze(AFTER_LEAST, str(answer))
        if override != "no" and (override == "yes" or answer.status >= 500 or answer.status in _LATER):
            raise Retry(str(answer), after=answer.retry_after) from cause
        if 300 <= answer.status < 400:
            where = shown(answer.headers.get("location", ""))[:200]
            raise Reject(f"{answer}; it leads to {where!r}, and is never followed: correct the URL") from cause
        raise Reject(str(answer)) from cause

    def _result(self, answer: Answer) -> Any:
        if self._service.hands_over is not None:
            if answer.status != HTTPStatus.ACCEPTED:
                raise Retry(f"the answer is {answer.status}; a service that reports later answers 202 first")
            return None
        if answer.is_too_large:
            raise Reject(f"the answer has more than {RESULT_LIMIT:,} bytes; store it elsewhere and answer where it is")
        if not answer.is_json or not answer.body.strip():
            return None
        try:
            return decode(answer.body)
        except UnstorableError as error:
            raise Retry(f"the answer {answer.status} is no JSON that can be kept: {error}") from AnswerError(answer)

    async def _unavailable(self, trouble: str, cause: BaseException, *, was_closed: bool) -> NoReturn:
        counts = await self._breaker.unavailable(trouble, was_closed=was_closed)
        if counts:
            raise Retry(trouble) from cause
        raise Snooze(max(self._breaker.rest, AFTER_LEAST), trouble) from cause

    async def _post(self, task: Task) -> Answer:
        body = json.dumps(task.document(), separators=(",", ":")).encode()
        attributes: dict[str, str | int] = {
            "http.request.method": "POST",
            "server.address": check_url(self._url, allow_link_local=True).hostname or "",
            "url.full": shown(self._service.url),
        }
        with telemetry.span(
            telemetry.CALL, SpanKind.CLIENT, telemetry.current(task.traceparent), attributes
        ) as traceparent:
            headers = self._headers | request_headers(self._stage, task, body, self._secrets, traceparent)
            if task.lease:
                headers |= {"postroad-lease": task.lease, "prefer": "respond-async"}
                if self._public_url:
                    headers["postroad-callback"] = f"{self._public_url}/v1/leases/{task.lease}"
            try:
                return await self._ask(body, headers)
            except (aiohttp.ServerDisconnectedError, ConnectionResetError):
                # It closed a connection that was idle just when we used it; that is no sign of trouble, and to be
                # asked twice does it no harm, by the idempotency key.
                return await self._ask(body, headers)

    async def _ask(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        async with self._session().post(self._url, data=body, headers=headers, allow_redirects=False) as response:
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

    def _session(self) -> aiohttp.ClientSession:
        if self._client is None:
            resolver = None if self._service.allow_link_local else GuardedResolver()
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


def _told(error: Exception) -> str:
    """What a failed call says, in one line, without the URL's secrets."""
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        # asyncio's own words repeat the address.
        reason = os.strerror(cause.errno) if cause.errno and cause.errno > 0 else cause.strerror or first_line(cause)
        return f"cannot connect to {error.host}:{error.port}: {reason}"
    return shown(first_line(error))
