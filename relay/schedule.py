"""Submit the tasks of schedules when they are due: each tick once, however many relays run, die or come back.

A tick is submitted in the transaction that advances its schedule, so both happen or neither. Two who run the same one
at once are kept apart by the row's lock; and whatever befell the row, the idempotency key ``schedule/<name>/<tick>``
stands for one task.
"""

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from ..core.broker import heed_cancellation
from ..core.cron import Cron
from ..core.database import Statements, connect_psycopg
from ..core.errors import DeclarationError, first_line
from ..core.moment import rfc3339
from ..core.settings import Settings
from ..core.task import new_task_id
from ..core.telemetry import sent
from ..outbox.submit import Accepted, Submission, accept

log = logging.getLogger(__name__)

EVERY = 1.0
"""Seconds between two looks."""

LIMIT = 500
"""Schedules that share one transaction at most."""

HELD = "10s"
"""How long a relay that was stopped in its tracks may hold what it was about to submit; then Postgres lets it go."""

REST = timedelta(minutes=1)
"""How long a schedule is left alone whose line or time zone is none any more."""


@dataclass(frozen=True, slots=True)
class _Due:
    """A schedule whose tick ``next_at`` has come."""

    schedule: str
    pipeline: str
    cron: str
    timezone: str
    payload: str
    labels: str
    next_at: datetime
    now: datetime


class Scheduler:
    """Runs what is due, for as long as its relay works."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sql = Statements(__package__ or "", settings.schema)

    async def run(self) -> None:
        """Look every second until cancelled. Of servers that are away the relay complains."""
        while True:
            heed_cancellation()
            try:
                async with await connect_psycopg(self._settings, application="postroad schedule") as connection:
                    await connection.execute(_HOLD, [HELD])
                    while True:
                        heed_cancellation()
                        if await self.round(connection) < LIMIT:
                            await asyncio.sleep(EVERY)
            except (psycopg.Error, OSError) as error:
                log.info("schedules pause: %s", first_line(error))
            except Exception:
                # It runs beside the relay, which must not end with it, and nobody else would hear of this.
                log.exception("a fault in the scheduler; it goes on")
            await asyncio.sleep(EVERY)

    async def round(self, connection: psycopg.AsyncConnection[Any]) -> int:
        """Submit a task for each schedule that is due, in one transaction; returns how many were due."""
        async with connection.transaction():
            cursor = connection.cursor(row_factory=class_row(_Due))
            due = await (await cursor.execute(self._sql["due_schedules"].encode(), {"limit": LIMIT})).fetchall()
            if not due:
                return 0
            ticks = [_tick(row) for row in due]
            now_due = [(row, tick) for row, (tick, _) in zip(due, ticks, strict=True) if tick is not None]
            answers = await accept(connection, [_submission(row, tick) for row, tick in now_due], self._settings.schema)
            tasks = {row.schedule: _task(row, answer) for (row, _), answer in zip(now_due, answers, strict=True)}
            await connection.execute(
                self._sql["advance_schedules"].encode(),
                {
                    "schedule": [row.schedule for row in due],
                    "next_at": [next_at for _, next_at in ticks],
                    "last_at": [tick for tick, _ in ticks],
                    "last_task": [tasks.get(row.schedule) for row in due],
                },
            )
        for row, tick in now_due:
            if (task_id := tasks[row.schedule]) is not None:
                log.info(
                    "schedule %s: submitted for %s", row.schedule, rfc3339(tick),
                    extra={"pipeline": row.pipeline, "task_id": str(task_id)},
                )  # fmt: skip
        return len(due)


_HOLD = "select set_config('idle_in_transaction_session_timeout', %s, false)"


def _tick(row: _Due) -> tuple[datetime | None, datetime]:
    """The tick to be submitted for a schedule, the latest of those that were missed, and the one after it."""
    try:
        cron = Cron(row.cron, row.timezone)
        tick = cron.latest(row.next_at, row.now)
        return tick, cron.next(max(tick, row.now))
    except DeclarationError as error:
        log.error("schedule %s rests for a minute: %s", row.schedule, error)
        return None, row.now + REST


def _submission(row: _Due, tick: datetime) -> Submission:
    task_id = new_task_id()
    return Submission(
        task_id=task_id,
        pipeline=row.pipeline,
        payload=row.payload,
        labels=row.labels,
        traceparent=sent(row.pipeline, task_id, None),
        key=f"schedule/{row.schedule}/{rfc3339(tick)}",
    )


def _task(row: _Due, answer: object) -> UUID | None:
    if isinstance(answer, Accepted):
        return answer.task_id
    # Such as when a schedule was removed and made again with another payload since its last tick.
    log.warning("schedule %s: nothing was submitted: %s", row.schedule, answer)
    return None
