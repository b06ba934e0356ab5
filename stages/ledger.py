"""What Postgres knows of the stages that a worker runs: load it, and commit what the attempts came to.

Every commit is conditional on the version of the task that was loaded. If somebody else wrote the task meanwhile (a
stage beside this one, another worker that took over, a person who cancelled) it is loaded again and decided again.
"""

import hashlib
import json
import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ..core.backoff import backoff
from ..core.batching import GroupCommit
from ..core.database import Statements, is_transient
from ..core.jsontext import storable
from ..core.moment import rfc3339
from ..core.outcome import Completed, Expired, Handed, Outcome, Reject, Retry, Snooze
from ..core.pipeline import Stage
from ..core.task import Task
from .runner import NO_TRAIL, Trail

log = logging.getLogger(__name__)

GROUP = 500
"""Outcomes that share one commit at most."""

ERROR_LIMIT = 4000
"""Characters of an attempt's traceback, from its end, that its event keeps; the stage run has more of the last."""

OLD = timedelta(hours=1)
"""From this age of a task on, an attempt begins a trace of its own: one trace would go on for days."""

TRIES = 20
"""How often an outcome is decided again when others keep writing its task."""


@dataclass(frozen=True, slots=True)
class Work:
    """One (task, stage) as loaded, with what is needed to run it and to commit its outcome."""

    task_id: UUID
    version: int
    payload: Any
    labels: dict[str, str]
    created_at: datetime
    traceparent: str
    is_open: bool
    is_ready: bool
    attempts: int
    wait: timedelta | None
    worker: str | None
    """Whose outcome the latest one is, and of the attempt that began when."""
    started_at: datetime | None
    results: dict[str, Any] | None
    is_handed: bool = False
    """A service was to report, and its time is not up, or it has reported, or it has not and the time is up."""
    answer: dict[str, Any] | None = None
    """What the service reported."""
    deadline: datetime | None = None
    time_left: timedelta | None = None
    """Until the deadline, when this was loaded; by the clock of Postgres, as all dates are."""
    last_error: str | None = None
    due: datetime | None = None
    """The date, of its retry or its task, before which it may not start."""
    asked_at: datetime | None = None
    """When the event came true by which the stage was asked for, if an entry tells."""
    is_requeued: bool = False
    """It was a dead letter, and nothing was tried since."""
    loaded_at: float = field(default_factory=time.monotonic, compare=False)

    @property
    def is_anew(self) -> bool:
        """True if an attempt begins a trace of its own."""
        return self.is_requeued or datetime.now(UTC) - self.created_at > OLD

    def seconds_left(self) -> float:
        """Seconds until the task's deadline, negative after it; infinite if it has none."""
        if self.time_left is None:
            return math.inf
        return self.time_left.total_seconds() - (time.monotonic() - self.loaded_at)

    def expired(self, reason: str | None = None) -> str:
        """Why nothing more is started for the deadline's sake; ``reason`` is that of the attempt just made."""
        assert self.deadline is not None
        happened = "has passed" if self.seconds_left() <= 0 else "comes before the next attempt"
        after = reason or (self.last_error or "").strip().rpartition("\n")[2]
        return f"its deadline {rfc3339(self.deadline)} {happened}{f' (after: {after})' if after else ''}"

    def task(self, stage: Stage, *, lease: str | None = None) -> Task:
        """What the handler is given."""
        return Task(
            task_id=self.task_id,
            pipeline=stage.pipeline,
            stage=stage.name,
            payload=self.payload,
            results=self.results or {},
            attempt=self.attempts + 1,
            labels=self.labels,
            created_at=self.created_at,
            traceparent=self.traceparent,
            lease=lease,
            deadline=self.deadline,
        )


class Kind(StrEnum):
    """What an outcome makes of a stage run; the words of ``stage_run.status``."""

    DONE = "done"
    FAILED = "failed"
    SNOOZED = "snoozed"
    WAITING = "waiting"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be written for one attempt, decided from its outcome and the attempts before it."""

    kind: Kind
    attempts: int
    result: str | None = None
    reason: str | None = None
    error: str | None = None
    delay: timedelta | None = None
    lease: bytes | None = None

    @property
    def fingerprint(self) -> str:
        """The same for failures that look alike: the reason without its numbers and ids, hashed."""
        text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|0x[0-9a-f]+|\d+", "#", self.reason or "", flags=re.IGNORECASE)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of ``stage`` on ``work`` that has come to ``outcome``; ``error`` is a traceback, if there is one.

    ``is_counted``: it was counted when its work was handed to a service, so ``work`` has it among the attempts.
    """

    stage: Stage
    work: Work
    outcome: Outcome | Handed
    started_at: datetime
    error: str | None = None
    is_counted: bool = False
    trail: Trail = NO_TRAIL
    ended_at: datetime = field(default_factory=lambda: datetime.now(UTC), compare=False)

    @property
    def waited(self) -> float | None:
        """Seconds from when it was ready to its start, as far as the clocks agree; ``None`` if that is not known."""
        ready_at = max(filter(None, (self.work.asked_at, self.work.due)), default=None)
        return None if self.work.asked_at is None or ready_at is None else _seconds(self.started_at - ready_at)

    @property
    def ran(self) -> float:
        """Seconds from its start to its end."""
        return _seconds(self.ended_at - self.started_at)

    def verdict(self) -> Verdict:
        """Decide, purely from what was loaded: done, tried again after a delay, or dead."""
        tried = self.work.attempts + (not self.is_counted)
        match self.outcome:
            case Completed(result):
                return Verdict(Kind.DONE, tried, result=result)
            case Snooze() as snooze:
                reason = _line(snooze.reason) if snooze.reason else None
                if snooze.after.total_seconds() >= self.work.seconds_left():
                    return Verdict(Kind.DEAD, tried - 1, reason=_line(self.work.expired(reason)))
                return Verdict(Kind.SNOOZED, tried - 1, reason=reason, delay=snooze.after)
            case Handed(lease, within):
                return Verdict(Kind.WAITING, tried, delay=within, lease=lease)
            case Expired() as expired:
                return Verdict(Kind.DEAD, self.work.attempts, reason=_line(expired.reason), error=self.work.last_error)
            case Reject() as reject:
                return Verdict(Kind.DEAD, tried, reason=_line(reject.reason), error=self.error)
            case Retry() as retry:
                reason = _line(retry.reason)
                if tried > self.stage.retries:
                    return Verdict(Kind.DEAD, tried, reason=reason, error=self.error)
                delay = backoff(tried) if retry.after is None else retry.after
                if delay.total_seconds() >= self.work.seconds_left():
                    return Verdict(Kind.DEAD, tried, reason=_line(self.work.expired(reason)), error=self.error)
                return Verdict(Kind.FAILED, tried, reason=reason, error=self.error, delay=delay)

    def data(self, verdict: Verdict, worker: str) -> str:
        """What its event tells of it, as JSON; what is not known, or not so, is left out."""
        told: dict[str, Any] = {
            "attempt": verdict.attempts,
            "worker": worker,
            "started_at": self.started_at.isoformat(),
            "waited_seconds": self.waited,
            "ran_seconds": self.ran,
            "reason": verdict.reason,
            "error": None if verdict.error is None else verdict.error[-ERROR_LIMIT:],
            "delay_seconds": None if verdict.delay is None else verdict.delay.total_seconds(),
            "log": self.trail.lines or None,
            "traceparent": self.trail.traceparent,
        }
        return json.dumps({name: value for name, value in told.items() if value is not None}, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Settled:
    """What a commit came to. ``verdict`` is ``None`` if nothing was left to decide: somebody else had settled it.

    ``ended`` is the task's status if this has ended it.
    """

    verdict: Verdict | None
    ended: str | None = field(default=None, compare=False)


class Ledger:
    """Loads and commits, for all stages of one worker process; commits of its stages share transactions."""

    def __init__(self, engine: AsyncEngine, schema: str, worker: str) -> None:
        self._engine = engine
        # One round trip, and no rollback at the end, at which psycopg forgets all that it has prepared.
        self._reader = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._sql = Statements(__package__ or "", schema)
        self._worker = worker
        self._group: GroupCommit[Attempt, Settled] = GroupCommit(
            self._commit_group, limit=GROUP, is_transient=is_transient
        )

    async def load(self, stage: Stage, tasks: Iterable[UUID]) -> dict[UUID, Work]:
        """What is known of ``stage`` for each of ``tasks``; those that are gone are missing in the answer."""
        async with self._reader.connect() as connection:
            return await self._load(connection, stage, list(tasks))

    async def commit(self, attempt: Attempt) -> Settled:
        """Commit the attempt's outcome, together with whatever else has finished by then.

        Raises what Postgres said if it refused this very outcome, or if it is away (``is_transient``); then nobody
        knows whether it was committed, and committing again is safe.
        """
        return await self._group.submit(attempt)

    async def commit_within(self, connection: AsyncConnection, attempt: Attempt) -> Settled:
        """Write the attempt's outcome in the handler's own transaction, which the caller then commits.

        The caller must roll back if the answer has no verdict: somebody else has settled this stage.
        """
        left = {0: attempt}
        for _ in range(TRIES):
            settled, left = await self._settle(connection, left)
            if settled:
                return settled[0]
        raise _outpaced(left)

    async def drain(self) -> None:
        """Wait until every commit that was asked for has come to an end."""
        await self._group.drain()

    async def cancel(self, *, within: float) -> None:
        """End the commit that runs; it is undone, unless the server had it already. Wait at most ``within`` seconds."""
        await self._group.cancel(within=within)

    async def _commit_group(self, attempts: Sequence[Attempt]) -> Sequence[Settled]:
        settled: dict[int, Settled] = {}
        left = dict(enumerate(attempts))
        for _ in range(TRIES):
            # Each try in a transaction of its own: with the locks of the one before, it might wait for somebody who
            # waits for those. If a later try fails, all come again, and what was committed here is recognised.
            async with self._engine.begin() as connection:
                now_settled, left = await self._settle(connection, left)
            settled |= now_settled
            if not left:
                return [settled[place] for place in range(len(attempts))]
        raise _outpaced(left)

    async def _settle(
        self, connection: AsyncConnection, attempts: dict[int, Attempt]
    ) -> tuple[dict[int, Settled], dict[int, Attempt]]:
        """Write what attempts have come to; returns those that are settled, and those to be decided again.

        The latter are as loaded anew, since somebody else wrote their task. Locks tasks in the first statement alone.
        """
        settled: dict[int, Settled] = {}
        outpaced: dict[int, Attempt] = {}
        while attempts:
            # One outcome of a task at a time: the second one sees the version that the first one leaves.
            turn = {attempt.work.task_id: place for place, attempt in reversed(attempts.items())}
            verdicts = {place: attempts[place].verdict() for place in turn.values()}
            written = await self._write(connection, [(attempts[place], verdicts[place]) for place in verdicts])
            settled |= {turn[task_id]: Settled(verdicts[turn[task_id]], ended) for task_id, ended in written.items()}
            left = {place: attempt for place, attempt in attempts.items() if place not in settled}
            attempts = {}
            for place, fresh in (await self._reload(connection, left)).items():
                if isinstance(fresh, Settled):
                    settled[place] = fresh
                elif fresh.work.task_id in written:
                    attempts[place] = fresh
                else:
                    outpaced[place] = fresh
        return settled, outpaced

    async def _write(
        self, connection: AsyncConnection, decided: Sequence[tuple[Attempt, Verdict]]
    ) -> dict[UUID, str | None]:
        """Run the commit statement; the tasks that it took, each with its status if it has ended."""
        column: Callable[[Callable[[Attempt, Verdict], Any]], list[Any]] = lambda value: [  # noqa: E731
            value(attempt, verdict) for attempt, verdict in decided
        ]
        parameters = {
            "task_id": column(lambda attempt, _: attempt.work.task_id),
            "version": column(lambda attempt, _: attempt.work.version),
            "stage": column(lambda attempt, _: attempt.stage.name),
            "kind": column(lambda _, verdict: str(verdict.kind)),
            "attempts": column(lambda _, verdict: verdict.attempts),
            "result": column(lambda _, verdict: verdict.result),
            "reason": column(lambda _, verdict: verdict.reason),
            "error": column(lambda _, verdict: verdict.error),
            "fingerprint": column(lambda _, verdict: verdict.fingerprint if verdict.kind is Kind.DEAD else None),
            "delay": column(lambda _, verdict: verdict.delay),
            "started_at": column(lambda attempt, _: attempt.started_at),
            "data": column(lambda attempt, verdict: attempt.data(verdict, self._worker)),
            "lease": column(lambda _, verdict: verdict.lease),
            "worker": self._worker,
        }
        rows = await connection.exec_driver_sql(self._sql["commit"], parameters)
        return {row.task_id: row.ended for row in rows}

    async def _reload(
        self, connection: AsyncConnection, attempts: Mapping[int, Attempt]
    ) -> dict[int, Attempt | Settled]:
        """The attempts on the tasks as they are now, or what they have come to where nothing is left to decide."""
        stages = {attempt.stage.full_name: attempt.stage for attempt in attempts.values()}
        fresh: dict[int, Attempt | Settled] = {}
        for full_name, stage in stages.items():
            places = [place for place, attempt in attempts.items() if attempt.stage.full_name == full_name]
            loaded = await self._load(connection, stage, [attempts[place].work.task_id for place in places])
            for place in places:
                attempt = attempts[place]
                now = loaded.get(attempt.work.task_id)
                if now is None or not now.is_open or not now.is_ready:
                    fresh[place] = Settled(None)
                elif (now.worker, now.started_at) == (self._worker, attempt.started_at):
                    # This very outcome was committed before, and we were not told.
                    fresh[place] = Settled(replace(attempt.verdict(), attempts=now.attempts, delay=now.wait))
                elif now.answer is not None and attempt.work.answer is None:
                    # The service has reported while we thought that it had failed us: that counts.
                    fresh[place] = Settled(None)
                else:
                    fresh[place] = replace(attempt, work=replace(now, asked_at=attempt.work.asked_at))
        return fresh

    async def _load(self, connection: AsyncConnection, stage: Stage, tasks: list[UUID]) -> dict[UUID, Work]:
        rows = await connection.exec_driver_sql(
            self._sql["load"], {"pipeline": stage.pipeline, "stage": stage.name, "task_id": tasks}
        )
        return {row.task_id: Work(**row._mapping) for row in rows}


def _outpaced(left: Mapping[int, Attempt]) -> TimeoutError:
    return TimeoutError(f"{len(left)} tasks were written by others {TRIES} times in a row")


def _seconds(time: timedelta) -> float:
    return max(round(time.total_seconds(), 6), 0.0)


def _line(reason: str) -> str:
    """One line of text that Postgres can keep, 1,000 characters at most."""
    return (storable(reason.strip()).splitlines() or [""])[0][:1000] or "no reason given"
