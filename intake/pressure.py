"""Backpressure: when there is so much work ahead that the door takes no more for a while.

Two things are watched, about once a second: how many tasks of a pipeline are open, and how old the oldest event is that
has not reached Redis. Beyond a limit nothing is accepted until the measure has fallen well below it.

Counting takes the longer the more is open, so the next sample comes after a pause that is many times as long as the
last one took; what this process accepts meanwhile is added to what was counted.

Only Redis knows how far the outbox was published, by its markers. Where it does not answer, nothing was published since
it last did, as far as we know: tasks are accepted on, for Postgres is the truth, until what has happened since then is
older than the limit.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Iterable

from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncEngine

from ..core import metrics
from ..core.broker import Clients, Keys
from ..core.database import Statements
from ..core.errors import SettingsError, first_line
from ..core.settings import Settings
from ..outbox.marker import Marker, earliest
from .problems import Problem, exceeded, overloaded
from .transaction import is_unavailable

log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two samples, at least."""

REST = 20
"""A sample that took a while is followed by a pause so many times as long: a twentieth of one core at most."""

RECOVERED = 0.9
"""The part of a limit below which the door opens again."""

PATIENCE = 0.5
"""Seconds that Redis has to say how far it is."""


class Pressure:
    """Watches the limits ``open_tasks_limit`` and ``outbox_age_limit``."""

    def __init__(self, settings: Settings, engine: AsyncEngine) -> None:
        self._limit = settings.open_tasks_limit
        self._age_limit = settings.outbox_age_limit.total_seconds()
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._sql = Statements(__package__ or "", settings.schema)
        keys = Keys(settings.prefix, settings.shards)
        self._markers = [(keys.marker(shard), shard) for shard in keys.shards]
        self._clients = Clients(settings, connections=1) if settings.redis_url else None
        self._published: Marker | None = None
        self.age: float | None = None
        """Seconds since the oldest event that the last sample found unpublished; ``None``: not known, or none."""
        self._open: dict[str, int] = {}
        self._since: Counter[str] = Counter()
        """What was accepted here since the last sample."""
        self._full: set[str] = set()
        self._old_samples = 0
        self._is_old = False
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Sample until ``stop``. While Postgres is away everything stays as it was."""
        if not self._limit and not self._age_limit:
            return
        while not self._stopping.is_set():
            took = 0.0
            try:
                took = await self.sample()
            except Exception as error:
                if is_unavailable(error):
                    log.debug("sampling pauses: %s", first_line(error))
                else:
                    log.exception("the load cannot be sampled: the limits of the door stay as they are")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(INTERVAL, REST * took)):
                    await self._stopping.wait()

    @property
    def published(self) -> int | None:
        """The tick up to which all shards had been published when they last said so; ``None`` if they have not."""
        return self._published.tick if self._published else None

    def stop(self) -> None:
        """End ``run`` after this sample."""
        self._stopping.set()

    async def aclose(self) -> None:
        """Close the connections to Redis."""
        if self._clients is not None:
            await self._clients.aclose()

    def note_accepted(self, pipelines: Iterable[str]) -> None:
        """Tasks of these pipelines were accepted, one for each time that one is named."""
        pipelines = list(pipelines)
        metrics.accepted(pipelines)
        if self._limit:
            self._since.update(pipelines)

    def problem(self, pipeline: str, beside: int = 0) -> Problem | None:
        """Why no task of ``pipeline`` is accepted now; ``None`` if it is.

        ``beside`` is how many of it the same request has brought before.
        """
        if self._is_old:
            return overloaded(
                "outbox-age",
                "tasks that were accepted have not reached their stages for too long; try again later",
                after=random.randint(5, 10),
            )
        if self._limit and self._open.get(pipeline, 0) + self._since[pipeline] + beside >= self._limit:
            self._close(pipeline)
        if pipeline in self._full:
            return exceeded(
                "open-tasks",
                f"the pipeline {pipeline[:63]!r} has {self._limit:,} tasks that are not done; try again later",
                after=random.randint(5, 10),
            )
        return None

    async def sample(self) -> float:
        """Look once; how many seconds Postgres took. Raises what the driver raises."""
        await self._read_markers()
        counted = self._since.copy()
        marker = self._published
        parameters = {
            "tick": marker and marker.tick,
            "is_part": marker is not None and marker.is_part,
            "limit": self._limit,
        }
        async with self._engine.connect() as connection:
            started = time.monotonic()
            rows = (await connection.exec_driver_sql(self._sql["pressure"], parameters)).all()
            took = time.monotonic() - started
        self._since -= counted  # keeps what came while we asked
        self._open = {row.pipeline: row.open for row in rows}
        if rows:
            if self._published is None:
                self._published = Marker(rows[0].newest, None)
            self.age = rows[0].age
            self._judge_age(rows[0].age or 0.0)
        for pipeline in list(self._full):
            if self._open.get(pipeline, 0) < RECOVERED * self._limit:
                self._full.discard(pipeline)
                log.info("tasks of %s are accepted again", pipeline)
        for pipeline, count in self._open.items():
            if self._limit and count >= self._limit:
                self._close(pipeline)
        return took

    def _close(self, pipeline: str) -> None:
        if pipeline not in self._full:
            self._full.add(pipeline)
            log.warning("%s has %d open tasks: no more are accepted for now", pipeline, self._limit)

    def _judge_age(self, age: float) -> None:
        if not self._age_limit:
            return
        # Twice, or one transaction that was open for long would close the door in the moment in which it commits.
        self._old_samples = self._old_samples + 1 if age > self._age_limit else 0
        if not self._is_old and self._old_samples >= 2:
            self._is_old = True
            log.warning("the oldest event has not been published for %.0f s: no more tasks are accepted", age)
        elif self._is_old and age < RECOVERED * self._age_limit:
            self._is_old = False
            log.info("tasks are accepted again: the oldest event that is not published is %.0f s old", age)

    async def _read_markers(self) -> None:
        """Learn how far every shard is; if one does not say, leave it at what we knew."""
        if self._clients is None or not self._age_limit:
            return
        try:
            async with asyncio.timeout(PATIENCE):
                markers = [
                    Marker.parse(str(await self._clients.of(shard).get(key) or "")) for key, shard in self._markers
                ]
        except (RedisError, OSError, TimeoutError, SettingsError):
            return
        known = [marker for marker in markers if marker is not None]
        if len(known) == len(markers):
            self._published = earliest(known)
