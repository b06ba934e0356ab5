"""Fetch the entries of one stage: new ones, those that are due again, and what dead workers left.

Never more than there is room for and the stage's limits let begin, so that nothing waits in a worker that another
could run.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Protocol

from redis.exceptions import RedisError

from ..core import broker, metrics
from ..core.backoff import Pause
from ..core.pipeline import Stage
from .holding import Holding
from .inbox import Delivery
from .lanes import Lanes
from .throttle import Throttle

log = logging.getLogger(__name__)

RECLAIM = 0.5
"""Seconds between two looks for entries that are due."""


class Take(Protocol):
    """Holds entries that were fetched, and begins to work on them."""

    def __call__(self, deliveries: Sequence[Delivery], *, is_reclaimed: bool = False) -> None: ...


class Fetcher:
    """Brings the entries of ``stage`` to ``take``, until it is ``stopping``."""

    def __init__(
        self,
        stage: Stage,
        inbox: Lanes,
        throttle: Throttle,
        holding: Holding,
        *,
        take: Take,
        lease: timedelta,
        stopping: asyncio.Event,
    ) -> None:
        self._stage = stage
        self._inbox = inbox
        self._throttle = throttle
        self._holding = holding
        self._take = take
        self._lease = lease.total_seconds()
        self._fetching = asyncio.Lock()
        """Held while entries are fetched for which the stage's limits granted room: nobody else counts them yet."""
        self._stopping = stopping
        # Not before everybody has had time to beat once more: Redis may have been wiped just now.
        self._may_reclaim_at = time.monotonic() + self._lease / 4

    async def run(self) -> None:
        """Fetch until we stop. What the last read has brought was taken when this returns."""
        async with asyncio.TaskGroup() as loops:
            reading = loops.create_task(self._read_loop())
            loops.create_task(self._reclaim_loop())
            loops.create_task(self._end_reading(reading))

    async def redis_failed(self, doing: str, error: Exception, pause: Pause) -> None:
        """Heed that Redis failed, say so from time to time, and leave it alone for a moment."""
        await self._inbox.heed(error)
        # While Redis was away no heartbeat could be seen, and a wipe took them all: everybody would look dead.
        self._may_reclaim_at = time.monotonic() + self._lease
        if broker.is_group_missing(error):
            if pause.is_worth_a_line():
                log.info("waiting for the relay to create the stream of %s", self._stage.full_name)
        else:
            if pause.is_worth_a_line():
                log.warning("Redis: %s pauses: %s", doing, broker.told(error))
        await self._sleep(pause.next())

    async def _end_reading(self, reading: asyncio.Task[None]) -> None:
        """Once we stop, end the read that waits: again and again, for one that begins just now is not to be hit."""
        try:
            await self._stopping.wait()
        finally:
            # Cancelled, as when another loop failed, the loops must end by the flag: asyncio.wait_for, which redis-py
            # uses, loses cancellations before Python 3.12.
            self._stopping.set()
            self._holding.notify()
        while not reading.done():
            # If Redis is away the read ends by itself.
            with contextlib.suppress(RedisError, OSError):
                await self._inbox.interrupt()
            await asyncio.wait([reading], timeout=0.05)

    async def _read_loop(self) -> None:
        pause = Pause()
        while not self._stopping.is_set():
            room = await self._holding.wait_for_room(self._stopping)
            if self._stopping.is_set():
                return
            try:
                await self._read(room)
            except (RedisError, OSError) as error:
                await self.redis_failed("reading", error, pause)
                await self._recover(pause)
                continue
            pause.reset()

    async def _read(self, room: int) -> None:
        """Read once, at most ``room`` entries and what the stage's limits let begin."""
        if not self._throttle.is_needed:
            self._take(await self._inbox.read(room))
            return
        # No waiting with what was granted in hand: another process may have a use for it.
        granted, wait, deliveries = await self._fetch(room, partial(self._inbox.read, wait=False))
        if not granted:
            # Not for long: limits are changed, and others give back what they do not need.
            began = time.monotonic()
            await self._sleep(min(wait, RECLAIM))
            metrics.limited(self._stage.pipeline, self._stage.name, time.monotonic() - began)
        elif not deliveries:
            await self._inbox.wait()

    async def _fetch(
        self, want: int, fetch: Callable[[int], Awaitable[list[Delivery]]], *, is_reclaimed: bool = False
    ) -> tuple[int, float, list[Delivery]]:
        """Take what ``fetch`` brings of at most ``want`` entries, as many as the stage's limits let begin.

        Returns how many these were, in how many seconds to ask again if none, and what was fetched.
        """
        async with self._fetching:
            granted, wait = await self._throttle.take(want, held=len(self._holding))
            if not granted:
                return 0, wait, []
            fetched: list[Delivery] = []
            try:
                fetched = await fetch(granted)
                self._take(fetched, is_reclaimed=is_reclaimed)
            finally:
                if len(fetched) < granted:
                    await self._throttle.give_back(granted - len(fetched), held=len(self._holding))
            return granted, 0.0, fetched

    async def _recover(self, pause: Pause) -> None:
        """After a failed call: take what Redis handed us in a reply that never came."""
        while not self._stopping.is_set():
            try:
                room = await self._holding.wait_for_room(self._stopping)
                deliveries = await self._inbox.recover(list(self._holding.entries), room)
                self._healed(len(deliveries), "lost reply")
            except (RedisError, OSError) as error:
                await self.redis_failed("recovering", error, pause)
                if broker.is_group_missing(error):
                    return
                continue
            self._take(deliveries)
            if len(deliveries) < room:
                return

    async def _reclaim_loop(self) -> None:
        """Fetch what is due again, and what dead workers left."""
        pause = Pause()
        look_for_dead_at = 0.0
        while not self._stopping.is_set():
            wait = RECLAIM * random.uniform(0.75, 1.25)
            try:
                if (share := self._holding.share) > 0:
                    wait = await self._reclaim_due(share, wait)
                else:
                    wait = 0.05
                now = time.monotonic()
                if now >= max(look_for_dead_at, self._may_reclaim_at) and (share := self._holding.share) > 0:
                    granted, dead = await self._reclaim_dead(share)
                    if dead:
                        self._healed(len(dead), "dead worker")
                        metrics.leases_lost(self._stage.pipeline, self._stage.name, len(dead))
                        log.warning("took over %d entries of dead workers of %s", len(dead), self._stage.full_name)
                    if granted and len(dead) == granted:
                        wait = min(wait, 0.01)  # there may be more
                    elif granted:
                        await self._tidy(share - len(dead))
                        look_for_dead_at = now + self._lease / 4 * random.uniform(0.75, 1.25)
                pause.reset()
            except (RedisError, OSError) as error:
                await self.redis_failed("reclaiming", error, pause)
                await self._recover(pause)
                continue
            await self._sleep(wait)

    async def _reclaim_due(self, share: int, wait: float) -> float:
        """Take parked entries that are due, at most ``share``; when to look again, after ``wait`` seconds at most."""
        next_due: timedelta | None = None

        async def fetch(count: int) -> list[Delivery]:
            nonlocal next_due
            due, next_due = await self._inbox.reclaim_due(count)
            return due

        granted, wait_for_grant, due = await self._fetch(share, fetch, is_reclaimed=True)
        if not granted:
            return min(wait, max(wait_for_grant, 0.005))
        if len(due) == granted:
            return 0.01
        return wait if next_due is None else min(wait, max(next_due.total_seconds(), 0.005))

    async def _reclaim_dead(self, share: int) -> tuple[int, list[Delivery]]:
        """Take entries of dead workers, at most ``share``; how many the stage's limits let begin now, and they."""
        granted, _, dead = await self._fetch(share, self._inbox.reclaim_dead, is_reclaimed=True)
        self._throttle.processes = 1 + self._inbox.others
        return granted, dead

    async def _tidy(self, share: int) -> None:
        """Mend what a failover may have undone without an error of ours, and delete what nobody would be given."""
        # What we parked may be pending under our name again.
        ours = await self._inbox.recover(list(self._holding.entries), share)
        self._healed(len(ours), "lost reply")
        self._take(ours, is_reclaimed=True)
        await self._inbox.relist()
        if left_over := await self._inbox.trim():
            self._healed(left_over, "left over")
            log.info("deleted %d entries of %s that nobody would be given again", left_over, self._stage.full_name)

    def _healed(self, count: int, reason: str) -> None:
        metrics.healed(count, reason, pipeline=self._stage.pipeline, stage=self._stage.name)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but not longer than until we stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
