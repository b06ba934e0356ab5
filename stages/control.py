"""Hear what people ask of a running worker: pause a stage, set its limits, read its lanes, cancel a task.

Asked of Postgres once a second, in one statement for all stages of the process. A notification could be missed; a flag
in a table cannot.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from ..core.database import Statements, is_transient
from ..core.errors import first_line
from ..core.pipeline import Stage
from .throttle import Limits

log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two looks."""


class Controlled(Protocol):
    """What can be told to pause and to cancel: the consumer of one stage."""

    stage: Stage

    @property
    def running(self) -> Collection[UUID]:
        """The tasks that it runs."""

    def set_limits(self, limits: Limits) -> None:
        """Begin no more than these allow."""

    def set_rest(self, rest: timedelta | None, trouble: str | None) -> None:
        """Leave the service behind the stage alone for so long, ``None``: not at all; and why."""

    async def set_priorities(self, are_on: bool) -> None:
        """Read the lanes of the stage, or its one stream."""

    async def set_paused(self, is_paused: bool) -> None:
        """Read nothing more while paused."""

    def cancel(self, task_id: UUID) -> None:
        """End the attempt on this task; its outcome would change nothing."""


class Control:
    """Passes on to ``consumers`` what Postgres says."""

    def __init__(self, engine: AsyncEngine, schema: str, consumers: Sequence[Controlled]) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._sql = Statements(__package__ or "", schema)
        self._consumers = consumers
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Look until ``stop``. While Postgres is away everything stays as it was."""
        while not self._stopping.is_set():
            try:
                await self.look()
            except Exception as error:
                if is_transient(error):
                    log.debug("control pauses: %s", first_line(error))
                else:
                    # Nobody would miss this loop, if it ended, before somebody pauses a stage in vain.
                    log.exception("a fault in the worker itself; pauses and cancellations are not heard")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL):
                    await self._stopping.wait()

    def stop(self) -> None:
        """End ``run`` after this look: one that is cancelled may leave its connection to the garbage collector."""
        self._stopping.set()

    async def look(self) -> None:
        """Look once."""
        stages = [consumer.stage for consumer in self._consumers]
        parameters = {
            "pipeline": [stage.pipeline for stage in stages],
            "stage": [stage.name for stage in stages],
            "task_id": [task_id for consumer in self._consumers for task_id in consumer.running],
        }
        async with self._engine.connect() as connection:
            rows = (await connection.exec_driver_sql(self._sql["control"], parameters)).all()
        settings = {(row.pipeline, row.stage): row for row in rows if row.task_id is None}
        cancelled = {row.task_id for row in rows if row.task_id is not None}
        for consumer in self._consumers:
            if row := settings.get((consumer.stage.pipeline, consumer.stage.name)):
                consumer.set_limits(
                    Limits.in_force(consumer.stage, rate=row.rate, burst=row.burst, max_running=row.max_running)
                )
                consumer.set_rest(row.rest, row.trouble)
                await consumer.set_priorities(row.priorities)
                await consumer.set_paused(row.paused)
            for task_id in cancelled.intersection(consumer.running):
                consumer.cancel(task_id)
