"""Whether a service or a program keeps to the contract of a stage: cases, each of them tried on it.

It is asked as workers ask it, and does its work for the tasks that it is given. A case that fails would lose work, do
it twice, or stop the stage; one that comes to a warning only costs attempts or makes people wonder.
"""

import asyncio
import json
import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

import aiohttp

from ..core.command_stage import CommandStage
from ..core.errors import DeclarationError, UnreachableError
from ..core.http_stage import HttpStage
from ..core.outcome import Reject, Retry, Snooze
from ..core.pipeline import Stage
from ..core.task import Task, new_task_id
from ..core.telemetry import continued
from .command import CommandHandler
from .http import LATER, OF_THE_SERVICE, result_of
from .service import Answer, RefusedAddressError, Service, signature, told

LARGE = 1024 * 1024
"""Bytes that an earlier stage's result may have, and that every request after it brings along."""

SKEW = 600
"""Seconds by which a timestamp is wrong: the scheme lets a service refuse more than 300."""

SLOW, PIECES = timedelta(seconds=1.5), 6
"""How long a slow client takes to send its body, and in how many pieces; less if the timeout is shorter."""

_SIGNATURES = {
    "two signatures": "a stranger's, then ours",
    "no signature": "a task without one",
    "wrong secret": "signed by a stranger",
    "changed body": "changed after it was signed",
    "old timestamp": f"signed {SKEW // 60} minutes ago",
    "future timestamp": f"signed in {SKEW // 60} minutes",
}


class Verdict(StrEnum):
    """What a case came to."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """A case that was tried, in words: what was sent, what should have come, and what came."""

    case: str
    verdict: Verdict
    sent: str
    expected: str
    came: str


@dataclass(frozen=True, slots=True)
class Work:
    """What a good task brings to the stage: its payload, and what the stages before returned, by their names."""

    payload: Any = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)


class Reports(Protocol):
    """Where a service reports how the work ended that it has taken."""

    async def report(self, token: str, within: timedelta) -> tuple[str, str]:
        """Wait for what is reported by ``token``: ``completed``, ``failed`` or ``rejected``, and that in words."""


class _End(StrEnum):
    """What an attempt is for a worker."""

    DONE = "done"
    DEAD = "a dead letter at once"
    LATER = "tried again"
    FAILED = "a failed attempt"
    AWAY = "the stage rests"
    SILENT = "no answer in time"
    LOST = "no answer"


@dataclass(frozen=True, slots=True)
class _Came:
    end: _End
    words: str
    status: int = 0
    """Of an answer over HTTP."""
    kept: Any = None
    """Of an attempt that is done: what a repeat must be like."""


class _Conformance(ABC):
    """The cases that services and programs have in common."""

    def __init__(self, stage: Stage, work: Work) -> None:
        self._stage = stage
        self._work = work

    @abstractmethod
    async def _attempt(self, task: Task) -> _Came:
        """Have the work of ``task`` done once."""

    async def _common(self) -> AsyncIterator[Check]:
        """The cases about the work itself, the good delivery first."""
        task = self._task("delivery")
        first = await self._attempt(task)
        yield _judged("delivery", "a task", "done", first, first.end is _End.DONE)
        is_well = first.end is _End.DONE
        yield await self._repeat(task, first) if is_well else _skipped("repeat", "no delivery came through")
        yield await self._twins() if is_well else _skipped("twins", "no delivery came through")
        yield await self._large()
        yield await self._unfit()

    async def _repeat(self, task: Task, first: _Came) -> Check:
        again = await self._attempt(replace(task, attempt=2))
        is_alike = again.end is _End.DONE and again.kept == first.kept
        return _judged("repeat", "the same key again, attempt 2", "the answer of the first", again, is_alike)

    async def _twins(self) -> Check:
        task = self._task("twins")
        came = await asyncio.gather(self._attempt(task), self._attempt(task))
        ends = {one.end for one in came}
        words = " | ".join(dict.fromkeys(one.words for one in came))
        if ends == {_End.DONE}:
            verdict = Verdict.OK if came[0].kept == came[1].kept else Verdict.FAILED
        elif ends == {_End.DONE, _End.LATER}:
            verdict = Verdict.OK
        elif _End.DONE in ends and ends & {_End.FAILED, _End.AWAY}:
            verdict = Verdict.WARNING
        else:
            verdict = Verdict.FAILED
        return Check("twins", verdict, "one key twice at once", "answers alike, or one is told to come again", words)

    async def _large(self) -> Check:
        task = self._task("large")
        came = await self._attempt(replace(task, results={**task.results, "filling": "x" * LARGE}))
        is_well = came.end not in (_End.FAILED, _End.SILENT, _End.LOST)
        return _judged("large", "results of 1 MiB", "done, or refused", came, is_well)

    async def _unfit(self) -> Check:
        payload = 0 if isinstance(self._work.payload, str) else "no task at all"
        came = await self._attempt(replace(self._task("unfit payload"), payload=payload))
        if came.end is _End.DEAD:
            verdict = Verdict.OK
        else:
            verdict = Verdict.FAILED if came.end in (_End.SILENT, _End.LOST) else Verdict.WARNING
        return Check("unfit payload", verdict, f"the payload {payload!r}", _End.DEAD, came.words)

    def _task(self, case: str) -> Task:
        return Task(
            task_id=new_task_id(),
            pipeline=self._stage.pipeline,
            stage=self._stage.name,
            payload=self._work.payload,
            results=self._work.results,
            attempt=1,
            labels={"conformance": case.replace(" ", "-")},
            created_at=datetime.now(UTC),
            traceparent=continued(None),
        )


class ServiceConformance(_Conformance):
    """Tries the HTTP service of ``stage`` with tasks that bring ``work``.

    A service that reports later does so to ``reports``, which it finds by ``public_url``, within ``report_within``.
    """

    def __init__(
        self,
        stage: Stage,
        declared: HttpStage,
        work: Work,
        *,
        reports: Reports | None = None,
        public_url: str = "",
        report_within: timedelta = timedelta(seconds=30),
    ) -> None:
        super().__init__(stage, work)
        self._service = Service(stage, declared, public_url=public_url)
        self._reports = reports
        self._report_within = report_within
        self._was_there = False
        """Whether anybody has answered, or at least been connected to."""

    async def checks(self) -> AsyncIterator[Check]:
        """The cases, one after the other, as they end.

        Raises ``UnreachableError`` if there is no service, ``DeclarationError`` if it must not be called.
        """
        try:
            async for check in self._common():
                yield check
            async for check in self._signatures():
                yield check
            yield await self._slow()
        finally:
            await self._service.close()

    async def _attempt(self, task: Task) -> _Came:
        return await self._deliver(*self._request(task))

    async def _twins(self) -> Check:
        if self._reports is not None:
            return _skipped("twins", "of two leases only the latest counts")
        return await super()._twins()

    async def _signatures(self) -> AsyncIterator[Check]:
        """The cases about who may ask: what we have signed, and nobody else, and not for long."""
        known = self._service.secrets
        for case, sent in _SIGNATURES.items():
            if not known:
                yield _skipped(case, "there is no secret")
                continue
            task = self._task(case)
            headers, body, token = self._request(task)
            signed_at = int(time.time())
            secrets_used = known
            match case:
                case "two signatures":
                    secrets_used = [os.urandom(32), *known]
                case "no signature":
                    secrets_used = []
                case "wrong secret":
                    secrets_used = [os.urandom(32)]
                case "old timestamp":
                    signed_at -= SKEW
                case "future timestamp":
                    signed_at += SKEW
            headers = {name: value for name, value in headers.items() if not name.startswith("webhook-")}
            if secrets_used:
                headers |= signature(task.idempotency_key, signed_at, body, secrets_used)
            if case == "changed body":
                body = body.removesuffix(b"}") + b',"changed":true}'
            yield _heeded(case, sent, await self._deliver(headers, body, token))

    async def _slow(self) -> Check:
        headers, body, token = self._request(self._task("slow"))
        takes = min(SLOW, self._stage.timeout / 2)
        size = len(body) // PIECES + 1

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(body), size):
                yield body[start : start + size]
                await asyncio.sleep(takes.total_seconds() / PIECES)

        came = await self._deliver(headers | {"content-length": str(len(body))}, pieces(), token)
        if came.end is _End.SILENT:
            verdict = Verdict.FAILED
        else:
            verdict = Verdict.WARNING if came.end in (_End.FAILED, _End.LOST) else Verdict.OK
        sent = f"a task in pieces, over {takes.total_seconds():g} s"
        return Check("slow client", verdict, sent, "done, or refused", came.words)

    def _request(self, task: Task) -> tuple[dict[str, str], bytes, str]:
        """Headers and body of a delivery, and the token by which it is reported on, if that comes later."""
        token = "" if self._reports is None else secrets.token_urlsafe(24)
        headers, body = self._service.request(replace(task, lease=token or None), task.traceparent)
        return headers, body, token

    async def _deliver(self, headers: dict[str, str], body: bytes | AsyncIterator[bytes], token: str) -> _Came:
        came = await self._post(headers, body)
        if self._reports is None or came.end is not _End.DONE:
            return came
        outcome, words = await self._reports.report(token, self._report_within)
        end = {"completed": _End.DONE, "rejected": _End.DEAD}.get(outcome, _End.FAILED)
        return replace(came, end=end, words=f"{came.words}, then {words}", kept=words)

    async def _post(self, headers: dict[str, str], body: bytes | AsyncIterator[bytes]) -> _Came:
        try:
            if isinstance(body, bytes):
                answer = await self._service.post(headers, body)
            else:
                answer = await self._service.post_once(headers, body)
        except (aiohttp.ClientError, OSError) as error:
            words = told(error, self._stage.timeout)
            if not self._was_there and isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
                cause = getattr(error, "os_error", None)
                if isinstance(cause, RefusedAddressError):
                    raise DeclarationError(f"{cause}, unless link-local addresses are allowed") from None
                raise UnreachableError(self._service.shown_url, words) from None
            self._was_there = True
            is_late = isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError)
            return _Came(_End.SILENT if is_late else _End.LOST, words)
        self._was_there = True
        return self._came(answer)

    def _came(self, answer: Answer) -> _Came:
        status, override = answer.status, answer.headers.get("postroad-retry", "").strip().lower()
        kept = None
        if 200 <= status < 300:
            try:
                kept = (status, result_of(answer, reports_later=self._reports is not None))
            except (Retry, Reject) as fault:
                return _Came(_End.FAILED, str(fault), status)
            end = _End.DONE
        elif override in ("yes", "no"):
            end = _End.LATER if override == "yes" else _End.DEAD
        elif status in OF_THE_SERVICE:
            end = _End.AWAY
        elif status >= 500:
            end = _End.FAILED
        else:
            end = _End.LATER if status in LATER else _End.DEAD
        return _Came(end, str(answer), status, kept)


class ProgramConformance(_Conformance):
    """Tries the program of ``stage`` with tasks that bring ``work``."""

    def __init__(self, stage: Stage, declared: CommandStage, work: Work) -> None:
        super().__init__(stage, work)
        self._handler = CommandHandler(stage, declared)

    async def checks(self) -> AsyncIterator[Check]:
        """The cases, one after the other, as they end."""
        async for check in self._common():
            yield check

    async def _attempt(self, task: Task) -> _Came:
        try:
            async with asyncio.timeout(self._stage.timeout.total_seconds()):
                result = await self._handler.run(task)
        except TimeoutError:
            return _Came(_End.SILENT, f"no end within {self._stage.timeout.total_seconds():g} s")
        except Reject as fault:
            return _Came(_End.DEAD, str(fault))
        except Snooze as fault:
            return _Came(_End.LATER, str(fault))
        except Retry as fault:
            return _Came(_End.FAILED, str(fault))
        return _Came(_End.DONE, f"exit code 0: {json.dumps(result)[:300]}", kept=[result])


def _heeded(case: str, sent: str, came: _Came) -> Check:
    """What is said of an answer to a case about signatures."""
    is_refused = came.status in (401, 403)
    match case:
        case "two signatures":
            return _judged(case, sent, "done", came, came.end is _End.DONE)
        case "future timestamp":
            verdict = Verdict.OK if is_refused else Verdict.WARNING
        case "old timestamp" if 400 <= came.status < 500:
            # Refused as it must be; but a clock that is wrong would make dead letters of all tasks.
            verdict = Verdict.OK if is_refused else Verdict.WARNING
        case _:
            verdict = Verdict.OK if is_refused else Verdict.FAILED
    return Check(case, verdict, sent, "401 or 403", came.words)


def _judged(case: str, sent: str, expected: str, came: _Came, is_well: bool) -> Check:
    return Check(case, Verdict.OK if is_well else Verdict.FAILED, sent, expected, came.words)


def _skipped(case: str, why: str) -> Check:
    return Check(case, Verdict.SKIPPED, "", "", why)
