"""Look from time to time at how much there is, how old it is and whether the invariants hold: the gauges.

Only the relay that works looks, and only if somebody collects metrics. Each look is bounded, by a count and by a
timeout, and is followed by a pause many times as long: with millions of tasks it is a small part of what Postgres does.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row

from ..core import metrics
from ..core.broker import heed_cancellation
from ..core.database import Statements, connect_psycopg
from ..core.errors import first_line
from ..core.metrics import LEVELS
from ..core.settings import Settings
from ..outbox import audit
from ..outbox.marker import Marker, earliest

log = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between two looks, at least: often enough for a scrape each 15 s."""

FIRST = 1.0
"""Seconds before the first look: by then the relay knows how far the shards are."""

REST = 20
"""A look that took long is followed by a pause so many times as long."""

MOST = 10_000
"""Open tasks of a pipeline, dead letters of a stage and events that are counted: enough to see that there are many."""

TIMEOUT = "2s"
"""How long a look may take."""

TOO_LONG = timedelta(hours=1)
"""For so long an invariant is not looked at whose check took longer; ``postroad audit`` has the time."""

OURS = [name for name in metrics.GAUGES if name != "postroad.build.info"]

STATES = ("ready", "retrying", "waiting", "scheduled")


class Sampler:
    """Looks for as long as its relay works. ``markers`` are those of the shards; an unknown one is ``None``."""

    def __init__(self, settings: Settings, markers: Callable[[], list[Marker | None]]) -> None:
        self._settings = settings
        self._markers = markers
        self._sql = Statements(__package__ or "", settings.schema)
        self._checks = Statements(audit.__package__ or "", settings.schema)
        self._turns = deque(audit.INVARIANTS)
        self._not_before: dict[str, float] = {}
        self._violations: dict[str, int] = {}
        self._published: Marker | None = None

    async def run(self) -> None:
        """Look until cancelled. Of servers that are away the relay complains."""
        await asyncio.sleep(FIRST)
        try:
            while metrics.is_on():
                heed_cancellation()
                try:
                    async with await connect_psycopg(self._settings, application="postroad sampler") as connection:
                        await connection.execute("select set_config('statement_timeout', %s, false)", [TIMEOUT])
                        while True:
                            heed_cancellation()
                            began = time.monotonic()
                            await self.look(connection)
                            await asyncio.sleep(max(INTERVAL, REST * (time.monotonic() - began)))
                except (psycopg.Error, OSError) as error:
                    log.info("looking for metrics pauses: %s", first_line(error))
                except Exception:
                    # It runs beside the relay, which must not end with it, and nobody else would hear of this.
                    log.exception("a fault in the sampler; it goes on")
                # What nobody looks at is not known.
                LEVELS.clear(*OURS)
                await asyncio.sleep(INTERVAL)
        finally:
            LEVELS.clear(*OURS)

    async def look(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Look once, and show what there is."""
        LEVELS.show({"postroad.relay.leading": [(1, {})]})
        await self._look_at_stages(connection)
        await self._look_at_outbox(connection)
        await self._check(connection)

    async def _look_at_stages(self, connection: psycopg.AsyncConnection[Any]) -> None:
        names = (
            "postroad.stage.depth", "postroad.stage.oldest.ready.age", "postroad.stage.paused", "postroad.breaker.open",
            "postroad.dead.letters", "postroad.dead.letters.oldest.age",
        )  # fmt: skip
        rows = await self._ask(connection, "depth", most=MOST)
        if rows is None:
            LEVELS.clear(*names)
            return
        labelled = [(row, {"pipeline": row["pipeline"], "stage": row["stage"]}) for row in rows]
        depths = [(row[state], labels | {"state": state}) for row, labels in labelled for state in STATES]
        values = (
            depths,
            [(max(row["oldest_ready"] or 0, 0), labels) for row, labels in labelled],
            [(int(row["paused"]), labels) for row, labels in labelled],
            [(int(row["resting"]), labels) for row, labels in labelled],
            [(row["dead"], labels) for row, labels in labelled],
            [(max(row["oldest_dead"] or 0, 0), labels) for row, labels in labelled],
        )
        LEVELS.show(dict(zip(names, values, strict=True)))

    async def _look_at_outbox(self, connection: psycopg.AsyncConnection[Any]) -> None:
        markers = self._markers()
        known = [marker for marker in markers if marker is not None]
        if len(known) == len(markers):
            self._published = earliest(known)
        names = ("postroad.outbox.unpublished", "postroad.outbox.oldest.age")
        rows = None
        if (marker := self._published) is not None:
            rows = await self._ask(connection, "unpublished", tick=marker.tick, is_part=marker.is_part, most=MOST)
        if rows is None:
            LEVELS.clear(*names)
        else:
            LEVELS.show({names[0]: [(rows[0]["events"], {})], names[1]: [(max(rows[0]["age"], 0), {})]})

    async def _check(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Look at one invariant, a different one each time, of those that can be looked at in little time."""
        name = self._turns[0]
        self._turns.rotate(-1)
        if time.monotonic() < self._not_before.get(name, 0):
            return
        try:
            cursor = await connection.execute(self._checks[f"audit/{name}"].encode())
            row = await cursor.fetchone()
            self._violations[name] = int(row[0]) if row else 0
        except psycopg.errors.QueryCanceled:
            self._violations.pop(name, None)
            self._not_before[name] = time.monotonic() + TOO_LONG.total_seconds()
        shown = [(count, {"invariant": invariant}) for invariant, count in self._violations.items()]
        LEVELS.show({"postroad.audit.violations": shown})

    async def _ask(
        self, connection: psycopg.AsyncConnection[Any], statement: str, **parameters: Any
    ) -> list[dict[str, Any]] | None:
        """The rows; ``None`` if it took too long."""
        try:
            async with connection.cursor(row_factory=dict_row) as cursor:
                await cursor.execute(self._sql[statement].encode(), parameters)
                return await cursor.fetchall()
        except psycopg.errors.QueryCanceled:
            log.info("what there is takes too long to count: %s", statement)
            return None
