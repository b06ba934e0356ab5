"""The relay: from the outbox to the streams.

One loop: tick, read the windows that a shard lacks, publish them, sleep until somebody appends. All that it must
remember is in Postgres (the ticks) and in Redis (the markers); it may die at any point, and several may run.
"""

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
from opentelemetry.trace import SpanKind
from psycopg.rows import class_row
from redis.exceptions import RedisError

from ..core import broker, metrics, telemetry
from ..core.broker import Keys
from ..core.database import Statements, connect_psycopg, is_transient, make_engine
from ..core.errors import SchemaError, first_line
from ..core.settings import Settings, masked
from ..outbox.marker import Marker
from ..outbox.process import Registration, Role
from ..outbox.ticks import Tick, Ticks, Window
from .publish import Entry, Publication, Shard
from .rebuild import rebuild_lanes, rebuild_shard
from .route import Route, Routes
from .sampler import Sampler
from .schedule import Scheduler
from .sweep import Sweep

log = logging.getLogger(__name__)

POLL = 1.0
"""Seconds between two looks while nothing wakes us: the net below the notifications."""

INSPECT = 1.0
"""Seconds between two looks at whether Redis still has what we published."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds to leave Redis alone after it failed, doubling from the one to the other."""

LINGER = 0.1
"""Seconds for which the relay goes on looking after the last event before it sleeps. Commits that must notify a
sleeping relay wait for each other: with a relay that slept between any two events 16 writers managed 240 commits/s."""

SILENCE = timedelta(seconds=5)
"""For how long, beyond the lease, the working relay may say nothing to Postgres until another takes its place. At work
it says something every second, unless Redis hangs."""

SHORTEST_NAP, LONGEST_NAP = 0.002, 0.05
"""Seconds to wait while a transaction is open that appended when we were awake, and so will not notify us."""


class Relay:
    """One relay process. ``run`` goes on until it is cancelled; that is safe at any point."""

    def __init__(self, settings: Settings, *, name: str | None = None) -> None:
        self._settings = replace(settings, database_url=settings.direct_url or settings.database_url)
        self._sql = Statements(__package__ or "", settings.schema)
        self._clients = broker.Clients(settings)
        keys = Keys(settings.prefix, settings.shards)
        self._shards = [Shard(number, keys, self._clients.of(number)) for number in keys.shards]
        self._engine = make_engine(self._settings, application="postroad relay", pool=1)
        self._registration = Registration(self._engine, settings.schema, Role.RELAY, name=name)

    async def run(self) -> None:
        """Relay, and connect again whenever Postgres was lost. Raises ``SchemaError`` if it is not migrated."""
        try:
            async with self._registration:
                await self._run()
        finally:
            await self._engine.dispose()
            await self._clients.aclose()

    async def _run(self) -> None:
        pause = 0.1
        while True:
            broker.heed_cancellation()
            try:
                async with await connect_psycopg(self._settings, application="postroad relay") as connection:
                    pause = 0.1
                    await _Session(self, connection).run()
            except psycopg.errors.UndefinedTable as error:
                raise SchemaError(
                    f"schema {self._settings.schema!r} has no tables of postroad: run postroad migrate"
                ) from error
            except (psycopg.Error, OSError) as error:
                if not is_transient(error):
                    raise
                log.warning(
                    "waiting for Postgres at %s: %s",
                    masked(self._settings.database_url), first_line(error),
                )  # fmt: skip
                await asyncio.sleep(pause * random.uniform(0.5, 1))
                pause = min(pause * 2, 5.0)
            finally:
                self._registration.set_leading(False)


@dataclass(slots=True)
class _Progress:
    """What we know of one shard. Times are the event loop's."""

    seen: str | None = None
    """The marker's text as we left it; ``None`` if only Redis can tell."""
    inspected_at: float = 0.0
    pause: float = SHORTEST_PAUSE
    waiting: asyncio.Task[None] | None = None
    """Waits until the shard answers again, after it failed, or until it may be restored again."""
    restored_at: float = -math.inf
    rest: float = SHORTEST_PAUSE
    """Seconds from one restoring to the next: each asks for all that is ready, and with a Redis that evicts what it was
    given the outbox would fill up."""

    @property
    def is_away(self) -> bool:
        """Whether the shard is to be left alone."""
        return self.waiting is not None and not self.waiting.done()

    def note_restored(self) -> None:
        """What the shard lacked was asked for just now."""
        is_first = _now() - self.restored_at > 2 * LONGEST_PAUSE
        self.rest = SHORTEST_PAUSE if is_first else min(self.rest * 2, LONGEST_PAUSE)
        self.restored_at = _now()

    def must_rest(self) -> bool:
        """True if the shard was restored so recently that it is left alone for a while instead."""
        left = self.restored_at + self.rest - _now()
        if left <= 0:
            return False
        log.warning("Redis has lost what was just restored; trying again in %.1f s", left)
        self.waiting = asyncio.create_task(asyncio.sleep(left))
        return True


class _Session:
    """The relay's work for as long as one connection to Postgres lasts."""

    def __init__(self, relay: Relay, connection: psycopg.AsyncConnection[Any]) -> None:
        self._settings = relay._settings
        self._sql = relay._sql
        self._clients = relay._clients
        self._shards = relay._shards
        self._registration = relay._registration
        self._connection = connection
        self._ticks = Ticks(connection, relay._settings.schema)
        self._nap = SHORTEST_NAP
        self._linger_until = 0.0
        self._routes = Routes([])
        self._last: Tick
        self._progress = {shard.number: _Progress() for shard in relay._shards}

    async def run(self) -> None:
        # Each window has its own bounds: a plan for unknown ones would read the whole outbox.
        await self._connection.execute("set plan_cache_mode = force_custom_plan")
        await self._lead()
        await self._connection.execute(f'listen "{self._settings.schema}.outbox"')
        self._last, is_ours = await self._ticks.last()
        if not is_ours:
            await self._adopt()
        sweeping = asyncio.create_task(Sweep(self._settings, self._clients).run())
        scheduling = asyncio.create_task(Scheduler(self._settings).run())
        metrics.announce_relay()
        sampling = asyncio.create_task(Sampler(self._settings, self._markers).run())
        try:
            await self._relay()
        finally:
            beside = [
                sweeping,
                scheduling,
                sampling,
                *(progress.waiting for progress in self._progress.values() if progress.waiting),
            ]
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def _relay(self) -> None:
        while True:
            broker.heed_cancellation()
            await self._tick()
            is_behind = False
            for shard in self._shards:
                is_behind |= await self._attend(shard)
            if not is_behind:
                await self._sleep()

    async def _lead(self) -> None:
        """Wait until no other relay works, or the one that does has fallen silent."""
        is_waiting = False
        while not await self._flag("try_lead"):
            if not is_waiting:
                log.info("another relay works; waiting to take over")
                is_waiting = True
            await self._depose()
            await asyncio.sleep(0.5)
        self._registration.set_leading(True)
        log.info("relaying from %s to %s", masked(self._settings.database_url), masked(self._settings.redis_url))

    async def _depose(self) -> None:
        """End the session, and with it the lock, of a relay that works no more but has not ended.

        If it was only slow, or wakes later, it connects again and waits; what it had in hand stops at the marker.
        """
        silence = self._settings.lease + SILENCE
        cursor = await self._connection.execute(self._sql["depose"], {"silence": silence})
        for seconds, pid, _ in await cursor.fetchall():
            log.warning(
                "the working relay has been silent for %.0f s: ended its session (process %d of Postgres)", seconds, pid
            )

    async def _tick(self) -> None:
        if await self._ticks.is_news(self._last):
            self._linger_until = _now() + LINGER
            tick = await self._ticks.make()
            if tick is None:
                await self._adopt()
            else:
                self._last = tick

    async def _adopt(self) -> None:
        if await self._is_standby():
            raise psycopg.OperationalError("the server is a standby; waiting for a primary")
        log.warning("the last tick was not made by this server (restored or switched over): beginning anew")
        self._last = await self._ticks.adopt()
        await self._load_routes()
        for shard in self._shards:
            # If Redis is away: its marker is of a tick of the other server, and leads here again.
            await self._guarded(shard, partial(self._rebuild, shard, "another server"))

    async def _is_standby(self) -> bool:
        cursor = await self._connection.execute("select pg_is_in_recovery()")
        row = await cursor.fetchone()
        return bool(row and row[0])

    async def _attend(self, shard: Shard) -> bool:
        """Bring ``shard`` up to date; True if there is more to do at once."""
        return await self._guarded(shard, partial(self._advance, shard))

    async def _guarded(self, shard: Shard, work: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        """Do ``work``; if Redis fails, leave this shard alone for a while and forget what we knew of it."""
        progress = self._progress[shard.number]
        if progress.is_away:
            return False
        try:
            is_behind = await work()
        except (RedisError, OSError) as error:
            # Whether the last page went in is unknown: the marker will tell.
            progress.seen = None
            progress.waiting = asyncio.create_task(self._wait_for(shard, error))
            # However many shards hang, the relays that wait are to see that we live.
            await self._connection.execute("select")
            return False
        progress.pause = SHORTEST_PAUSE
        return is_behind

    async def _wait_for(self, shard: Shard, error: Exception) -> None:
        """Return when ``shard`` answers again; beside the others, since a call to a server that hangs takes seconds."""
        progress = self._progress[shard.number]
        while True:
            broker.heed_cancellation()
            log.warning(
                "waiting for Redis at %s: %s",
                masked(self._settings.redis_url), broker.told(error), extra={"shard": shard.number},
            )  # fmt: skip
            try:
                await shard.heed(error)
                await asyncio.sleep(progress.pause * random.uniform(0.5, 1))
                progress.pause = min(progress.pause * 2, LONGEST_PAUSE)
                await shard.ping()
                return
            except (RedisError, OSError) as failure:
                error = failure

    async def _advance(self, shard: Shard) -> bool:
        progress = self._progress[shard.number]
        if progress.seen is None or _now() - progress.inspected_at > INSPECT:
            await self._inspect(shard, progress)
        marker = Marker.parse(progress.seen or "")
        if marker is None or marker == Marker(self._last.tick, None):
            return marker is None
        windows = await self._ticks.windows(marker.tick, inclusive=marker.position is not None)
        # After the ticks: whoever was accepted by then has a pipeline that was deployed before.
        await self._load_routes()
        for window in windows:
            position = (marker.position or 0) if marker.tick == window.tick else 0
            if not await self._publish(shard, window, position):
                progress.seen = None
                return True
        return bool(windows)

    async def _publish(self, shard: Shard, window: Window, position: int) -> bool:
        """Publish the rest of one window; False if the shard was not as expected."""
        async with contextlib.aclosing(self._ticks.pages(window, position)) as pages:
            previous = None
            async for page in pages:
                if previous is not None and not await self._publish_page(
                    shard, previous, Marker(window.tick, previous[-1].position)
                ):
                    return False
                previous = page
        return await self._publish_page(shard, previous or [], Marker(window.tick, None))

    async def _publish_page(self, shard: Shard, page: list[Any], then: Marker) -> bool:
        broker.heed_cancellation()
        entries = [
            Entry(lane, event)
            for event in page
            for lane in self._routes.lanes_for(event)
            if shard.holds(lane.pipeline, lane.stage)
        ]
        progress = self._progress[shard.number]
        seen = progress.seen or ""
        began = _now()
        noted = time.time_ns()
        publication = await shard.publish(entries, seen=seen, then=then)
        if publication is not Publication.DONE:
            log.info("shard is not as expected: %s", publication.value, extra={"shard": shard.number})
            return False
        progress.seen = str(then)
        if entries:
            _note(entries, noted)
            log.debug(
                "published %d entries", len(entries),
                extra={
                    "shard": shard.number, "entries": len(entries), "outcome": publication.value,
                    "duration_ms": round((_now() - began) * 1000, 1),
                },
            )  # fmt: skip
        return True

    async def _inspect(self, shard: Shard, progress: _Progress) -> None:
        """Learn how far ``shard`` is, and restore what it has lost."""
        await self._load_routes()
        progress.inspected_at = _now()
        seen, missing = await shard.inspect(self._routes.lanes)
        marker = Marker.parse(seen)
        reason = None
        if marker is None:
            reason = "no marker"
        elif not await self._ticks.is_known(marker.tick):
            reason = "its marker is of no tick of this server"
        if (reason or missing) and progress.must_rest():
            progress.seen = None
            return
        if reason:
            await self._rebuild(shard, reason)
            return
        if missing:
            await rebuild_lanes(self._connection, shard, missing, schema=self._settings.schema, reason="no stream")
            progress.note_restored()
        if progress.seen is not None and progress.seen != seen:
            log.warning("the marker went from %s to %s", progress.seen, seen, extra={"shard": shard.number})
        progress.seen = seen

    async def _rebuild(self, shard: Shard, reason: str) -> bool:
        seen, _ = await shard.inspect([])
        tick = await self._ticks.make()
        if tick is None:
            await self._adopt()
            return True
        self._last = tick
        await rebuild_shard(
            self._connection, shard, self._routes.lanes, tick,
            seen=seen, schema=self._settings.schema, reason=reason,
        )  # fmt: skip
        self._progress[shard.number].note_restored()
        self._progress[shard.number].seen, _ = await shard.inspect([])
        return True

    def _markers(self) -> list[Marker | None]:
        """How far each shard is, as far as we know."""
        return [Marker.parse(progress.seen or "") for progress in self._progress.values()]

    async def _load_routes(self) -> None:
        async with self._connection.cursor(row_factory=class_row(Route)) as cursor:
            await cursor.execute(self._sql["routes"])
            self._routes = Routes(await cursor.fetchall())

    async def _sleep(self) -> None:
        """Wait until somebody appends, or a second has passed."""
        if all(progress.is_away for progress in self._progress.values()):
            # A backlog builds up anyway; to be notified of each commit would only slow the writers.
            waiting = [progress.waiting for progress in self._progress.values() if progress.waiting]
            await asyncio.wait(waiting, timeout=LONGEST_NAP * 5, return_when=asyncio.FIRST_COMPLETED)
            return
        if _now() < self._linger_until:
            await asyncio.sleep(SHORTEST_NAP)
            return
        if not await self._flag("try_sleep"):
            await asyncio.sleep(self._nap)
            self._nap = min(self._nap * 2, LONGEST_NAP)
            return
        self._nap = SHORTEST_NAP
        try:
            # Who appended before we had the lock did not notify; who appends from now on will.
            if not await self._ticks.is_news(self._last):
                async for _ in self._connection.notifies(timeout=POLL, stop_after=1):
                    pass
        finally:
            await self._connection.execute(self._sql["wake"])

    async def _flag(self, statement: str) -> bool:
        cursor = await self._connection.execute(self._sql[statement])
        row = await cursor.fetchone()
        return bool(row and row[0])


def _note(entries: Sequence[Entry], began: int) -> None:
    """Count what was published to each stage, and note it in a span if the trace of one of its tasks is recorded."""
    to: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        to.setdefault((entry.lane.pipeline, entry.lane.stage), []).append(entry.event.traceparent or "")
    for (pipeline, stage), traceparents in to.items():
        metrics.published(pipeline, stage, len(traceparents))
        if not telemetry.is_on():
            continue
        attributes: dict[str, str | int] = {
            "messaging.system": "redis",
            "messaging.operation.name": telemetry.RELAY,
            "messaging.operation.type": "send",
            "messaging.destination.name": f"{pipeline}.{stage}",
            "messaging.batch.message_count": len(traceparents),
            "postroad.pipeline": pipeline,
            "postroad.stage": stage,
        }
        links = [one for one in traceparents if one]
        telemetry.note(
            f"{telemetry.RELAY} {pipeline}.{stage}", SpanKind.CLIENT, attributes, links=links, began=began
        )  # fmt: skip


def _now() -> float:
    return asyncio.get_running_loop().time()
