"""A stage that is somebody's HTTP service: each attempt is a POST, and the answer its outcome."""

from datetime import timedelta
from http import HTTPStatus
from typing import Any, NoReturn

import aiohttp
from opentelemetry.trace import SpanKind

from ..core import telemetry
from ..core.errors import UnstorableError
from ..core.http_stage import HttpStage, shown
from ..core.jsontext import decode
from ..core.outcome import Reject, Retry, Snooze
from ..core.pipeline import Stage
from ..core.task import Task
from .breaker import Breaker
from .runner import RESULT_LIMIT
from .service import AFTER_LEAST, FAULT_LIMIT, Answer, Service, told

SLACK = timedelta(seconds=1)
"""What an attempt may take beyond the call, for what is recorded before and after it."""

OF_THE_SERVICE = {401, 403, 405, 407, 429, 502, 503, 504}
"""Statuses that tell of the service, or of how we are set up to call it, and not of the task."""

LATER = {404, 408, 409, 425}
"""Statuses with which another attempt may fare better."""


class AnswerError(Exception):
    """An answer that tells of a failure; kept with the attempt, with what it says in full."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer}\n{answer.body[:FAULT_LIMIT].decode('utf-8', 'replace')}")


class HttpHandler:
    """Calls the service of ``stage``, over connections of its own. ``close`` it at the end."""

    def __init__(self, stage: Stage, service: HttpStage, breaker: Breaker, *, public_url: str = "") -> None:
        self._stage = stage
        self._reports_later = service.hands_over is not None
        self._service = Service(stage, service, public_url=public_url)
        self._breaker = breaker

    async def run(self, task: Task) -> Any:
        """One attempt: the service's result. Raises ``Retry``, ``Snooze`` or ``Reject``."""
        if wait := await self._breaker.admit(self._stage.timeout + SLACK):
            raise Snooze(wait, f"the stage rests: {self._breaker.trouble}")
        was_closed = self._breaker.is_closed
        try:
            answer = await self._post(task)
        except (aiohttp.ClientError, OSError) as error:
            trouble = told(error, self._stage.timeout)
            if not _has_begun(error):
                await self._unavailable(trouble, error, was_closed=was_closed)
            await self._breaker.failed(trouble, was_closed=was_closed)
            raise Retry(trouble) from error
        return await self._heed(answer, was_closed=was_closed)

    async def close(self) -> None:
        """Close the connections."""
        await self._service.close()

    async def _heed(self, answer: Answer, *, was_closed: bool) -> Any:
        """What ``answer`` makes of the attempt, and of the stage."""
        cause = AnswerError(answer)
        if 200 <= answer.status < 300:
            await self._breaker.answered(was_closed=was_closed)
            return result_of(answer, reports_later=self._reports_later)
        override = answer.headers.get("postroad-retry", "").strip().lower()
        if override not in ("yes", "no") and answer.status in OF_THE_SERVICE:
            if answer.retry_after is not None and answer.status in (429, 503):
                await self._breaker.ask_less(answer.retry_after, str(answer), was_closed=was_closed)
                raise Snooze(answer.retry_after, str(answer))
            await self._unavailable(str(answer), cause, was_closed=was_closed)
        if answer.status >= 500:
            await self._breaker.failed(str(answer), was_closed=was_closed)
        else:
            await self._breaker.answered(was_closed=was_closed)
        if answer.status == 410 and not override:
            await self._breaker.gone(f"410 Gone from {self._service.shown_url}")
            raise Snooze(AFTER_LEAST, str(answer))
        if override != "no" and (override == "yes" or answer.status >= 500 or answer.status in LATER):
            raise Retry(str(answer), after=answer.retry_after) from cause
        if 300 <= answer.status < 400:
            where = shown(answer.headers.get("location", ""))[:200]
            raise Reject(f"{answer}; it leads to {where!r}, and is never followed: correct the URL") from cause
        raise Reject(str(answer)) from cause

    async def _unavailable(self, trouble: str, cause: BaseException, *, was_closed: bool) -> NoReturn:
        counts = await self._breaker.unavailable(trouble, was_closed=was_closed)
        if counts:
            raise Retry(trouble) from cause
        raise Snooze(max(self._breaker.rest, AFTER_LEAST), trouble) from cause

    async def _post(self, task: Task) -> Answer:
        traceparent = telemetry.current(task.traceparent)
        if not telemetry.is_recorded(traceparent):
            return await self._service.post(*self._service.request(task, traceparent))
        host, port = self._service.address
        attributes: dict[str, str | int] = {
            "http.request.method": "POST",
            "server.address": host,
            "server.port": port,
            "url.full": self._service.shown_url,
        }
        with telemetry.span(telemetry.CALL, SpanKind.CLIENT, traceparent, attributes) as span:
            answer = await self._service.post(*self._service.request(task, telemetry.current(traceparent)))
            span.set_attribute("http.response.status_code", answer.status)
            if answer.status >= 400:
                telemetry.fail(span, str(answer.status), "")
            return answer


def result_of(answer: Answer, *, reports_later: bool) -> Any:
    """The result that a good ``answer`` (2xx) brings; ``None`` if it has none. Raises ``Retry`` or ``Reject``."""
    if reports_later:
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


def _has_begun(error: Exception) -> bool:
    """Whether the service was there, and may have worked: nobody knows how far it came."""
    is_late = isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError)
    return is_late or isinstance(error, aiohttp.ClientPayloadError)
