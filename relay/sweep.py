"""Find single entries that were lost, and ask for their stages again.

A deleted entry or a removed consumer leaves the stream and its group in place, so nothing tells a rebuild. But once an
entry was delivered it is pending until its outcome is committed. So a stage that was ready before the oldest entry that
still waits to be delivered, and is not among the pending ones, has lost its entry. Waiting in a long backlog is not
loss. No clock of Redis takes part: both times are Postgres' own. For the same reason it can tell that a retry is due
which Redis, whose clock went back, would let wait.
"""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row
from redis.exceptions import RedisError

from ..core import metrics
from ..core.broker import Clients, Keys, Scripts, group_name, heed_cancellation
from ..core.database import Statements, connect_psycopg
from ..core.errors import first_line
from ..core.priority import Priority
from ..core.settings import Settings
from ..outbox.marker import Marker
from ..outbox.request import ready_stages
from ..outbox.ticks import Ticks
from .route import Lane, Route

log = logging.getLogger(__name__)

LIMIT = 1000
"""Tasks of one stage that are looked at in one round."""

PAGE = 200
"""Pending entries that are read in one call: about a millisecond for Redis."""


class Sweep:
    """Looks at one stage after another, slowly, for as long as its relay works.

    ``clients`` stay the caller's. ``margin`` is how long a stage must have been ready: longer than an event may take
    from its commit to the stream; by default two leases.
    """

    def __init__(self, settings: Settings, clients: Clients, *, margin: timedelta | None = None) -> None:
        self._settings = settings
        self._margin = margin or settings.lease * 2
        self._sql = Statements(__package__ or "", settings.schema)
        self._keys = Keys(settings.prefix, settings.shards)
        self._clients = clients

    async def run(self) -> None:
        """Sweep until cancelled, two rounds in each margin. Of servers that are away the relay complains."""
        while True:
            heed_cancellation()
            await asyncio.sleep(self._margin.total_seconds() / 2)
            try:
                async with await connect_psycopg(self._settings, application="postroad sweep") as connection:
                    await self.round(connection)
            except (psycopg.Error, OSError) as error:
                log.info("sweeping pauses: %s", first_line(error))
            except Exception:
                # It runs beside the relay, which must not end with it, and nobody else would hear of this.
                log.exception("a fault in the sweep; it goes on")

    async def round(self, connection: psycopg.AsyncConnection[Any]) -> int:
        """Look at every stage once; returns how many stages of tasks were asked for again.

        What is in a shard that does not answer is left for the next round.
        """
        cursor = await connection.cursor(row_factory=class_row(Route)).execute(self._sql["routes"])
        asked = 0
        away: set[int] = set()
        for route in await cursor.fetchall():
            shard = self._keys.shard_of(route.pipeline, route.stage)
            if shard in away:
                continue
            try:
                asked += await self._sweep(connection, route)
            except (RedisError, OSError) as error:
                away.add(shard)
                log.info("sweeping pauses: %s", first_line(error), extra={"shard": shard})
        return asked

    async def _sweep(self, connection: psycopg.AsyncConnection[Any], route: Route) -> int:
        pipeline, stage = route.pipeline, route.stage
        delivered = {lane: await self._delivered_before(connection, lane) for lane in route.lanes}
        whole = {lane: before for lane, before in delivered.items() if before is not None}
        if not whole:
            return 0
        by_priority = {lane.priority: before for lane, before in whole.items()}
        parameters = {
            "pipeline": pipeline,
            "stage": stage,
            "before": [by_priority.get(priority, by_priority.get(None)) for priority in sorted(Priority)],
            "latest": max(whole.values()),
            "limit": LIMIT,
        }
        rows = await (await connection.execute(self._sql["overdue"], parameters)).fetchall()
        # In this order: an entry that is settled in between is gone from the pending ones, but it was ready when
        # we looked. To ask for it again does no harm.
        overdue = {task_id for (task_id,) in rows}
        # In any lane: when a pipeline is given priorities, tasks are on their way in the one that was there before.
        for lane in whole if overdue else ():
            pending = await self._pending(lane)
            await self._wake(lane, [pending[task_id] for task_id in overdue & pending.keys()])
            overdue -= pending.keys()
        if not overdue:
            return 0
        statement, values = ready_stages(
            self._settings.schema, reason="sweep", stages=[(pipeline, stage)], tasks=overdue
        )
        asked = (await connection.execute(statement, values)).rowcount
        metrics.healed(asked, "lost entry", pipeline=pipeline, stage=stage)
        if asked:
            log.warning("the entries of %d tasks at %s.%s were lost; asked for again", asked, pipeline, stage)
        return asked

    async def _delivered_before(self, connection: psycopg.AsyncConnection[Any], lane: Lane) -> datetime | None:
        """Events of before this moment have been delivered; ``None`` if that cannot be said (a rebuild's affair)."""
        ticks = Ticks(connection, self._settings.schema)
        last, is_ours = await ticks.last()
        # The marker first: what it says was true when we looked, and only grows.
        shard = self._keys.shard_of(lane.pipeline, lane.stage)
        client = self._clients.of(shard)
        marker = Marker.parse(str(await client.get(self._keys.marker(shard)) or ""))
        if marker is None or marker.position is not None or not is_ours:
            return None
        is_quiet = not await ticks.is_news(last)
        state, *rest = await Scripts(__package__ or "", client).run(
            "horizon", [self._stream(lane)], [group_name(lane.pipeline, lane.stage)]
        )
        if state == "missing":
            return None
        parameters = {"tick": marker.tick, "is_quiet": is_quiet}
        row = await (await connection.execute(self._sql["published_until"], parameters)).fetchone()
        if row is None:
            return None
        published: datetime = row[0]
        if state == "waiting":
            published = min(published, datetime.fromtimestamp(int(rest[0]) / 1000, UTC))
        return published - self._margin

    async def _wake(self, lane: Lane, entries: list[str]) -> None:
        """Those of ``entries`` that are parked are due, whatever the clock of Redis says."""
        if not entries:
            return
        pipeline, stage, _ = lane
        scripts = Scripts(__package__ or "", self._clients.of(self._keys.shard_of(pipeline, stage)))
        woken = int(await scripts.run("wake", [self._keys.due(pipeline, stage, lane.name)], entries))
        metrics.healed(woken, "clock", pipeline=pipeline, stage=stage)
        if woken:
            log.warning("%d retries of %s.%s were due, but not by the clock of Redis", woken, pipeline, stage)

    async def _pending(self, lane: Lane) -> dict[UUID, str]:
        """The tasks of the pending entries, each with the last of its entries."""
        pipeline, stage, _ = lane
        stream, group = self._stream(lane), group_name(pipeline, stage)
        scripts = Scripts(__package__ or "", self._clients.of(self._keys.shard_of(pipeline, stage)))
        tasks: dict[UUID, str] = {}
        position = "-"
        while position:
            last, *page = await scripts.run("pending", [stream], [group, position, PAGE])
            tasks.update((UUID(task), entry_id) for task, entry_id in page)
            position = f"({last}" if last else ""
        return tasks

    def _stream(self, lane: Lane) -> str:
        return self._keys.stream(lane.pipeline, lane.stage, lane.name)
