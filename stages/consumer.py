"""One stage in a worker process: what it holds, and the loops that fetch and run it.

Always in this order: read, run, commit, acknowledge. Redis says what to look at, Postgres says what is true: an entry
is a hint that there may be something to do. So an entry that comes twice, late or out of a wiped stream does no harm,
and one that is lost is asked for again.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncEngine

from ..core import broker, telemetry
from ..core.backoff import Pause
from ..core.batching import GroupCommit
from ..core.errors import first_line
from ..core.event import Envelope
from ..core.pipeline import Stage
from ..core.settings import Settings
from .attempt import Attempts, persist
from .inbox import Delivery, Inbox
from .ledger import Kind, Ledger, Settled, Work
from .runner import HandlerThreads
from .throttle import Limits, Throttle

log = logging.getLogger(__name__)

RECLAIM = 0.5
"""Seconds between two looks for entries that are due."""

SUSPECT = 3
"""From this delivery on, or the last that the limit allows, an entry may have killed its worker, and runs with no other
suspect beside it, so that those that merely ran beside a killer come through before the limit."""

REST_AFTER_FAULT = timedelta(seconds=10)
"""How long an entry rests when we ourselves failed on it."""

CLEAN_UP = 5.0
"""Seconds that a handler has to end after it was cancelled at our stop."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shared:
    """What the stages of one process have in common."""

    settings: Settings
    ledger: Ledger
    engine: AsyncEngine
    threads: HandlerThreads
    connections: asyncio.Semaphore
    """As many as handlers may hold; loading and committing must find one too."""
    suspects: asyncio.Lock


@dataclass(slots=True)
class Held:
    """One entry that is ours, and what is being done with it."""

    work: asyncio.Task[None]
    is_reclaimed: bool
    has_begun: bool = False
    """Its handler runs, or ran: it is let finish when we stop."""
    is_cancelled: bool = False
    """Somebody cancelled its task: nothing that its attempt does counts any more."""
    is_parting: bool = False
    """It is being parked, and may come back before we hear that it was."""


class Consumer:
    """The consumer of one stage's group in this process. ``run`` until ``stop``."""

    def __init__(self, stage: Stage, inbox: Inbox, throttle: Throttle, shared: Shared) -> None:
        self.stage = stage
        self._inbox = inbox
        self._throttle = throttle
        self._settings = shared.settings
        self._ledger = shared.ledger
        self._attempts = Attempts(stage, shared.ledger, shared.engine, shared.threads)
        self._suspects = shared.suspects
        self._connections = shared.connections if stage.transaction else contextlib.nullcontext()
        self._slots = asyncio.Semaphore(stage.concurrency)
        self._held: dict[str, Held] = {}
        self._running: dict[UUID, str] = {}
        """The tasks that we run, and the entry that stands for each."""
        self._fetching = asyncio.Lock()
        """Held while entries are fetched for which the stage's limits granted room: nobody else counts them yet."""
        self._has_room = asyncio.Event()
        self._stopping = asyncio.Event()
        self._grace_ends_at = 0.0
        # Not before everybody has had time to beat once more: Redis may have been wiped just now.
        self._may_reclaim_at = time.monotonic() + shared.settings.lease.total_seconds() / 4
        self._is_paused = False
        self._acknowledging: GroupCommit[str, None] = GroupCommit(self._acknowledge)
        self._parking: GroupCommit[tuple[str, timedelta], None] = GroupCommit(self._park)
        self._reporting: GroupCommit[None, None] = GroupCommit(self._report)

    async def run(self) -> None:
        """Fetch and run entries until ``stop``; then let what runs finish within the grace, hand the rest back."""
        try:
            async with asyncio.TaskGroup() as loops:
                reading = loops.create_task(self._read_loop())
                loops.create_task(self._reclaim_loop())
                loops.create_task(self._end_reading(reading))
            # Only now: what the last read has brought is ours, and must be handed back with the rest.
            await self._wind_up()
        finally:
            await self._inbox.close()

    def stop(self) -> None:
        """Begin to stop; returns at once. Safe to call twice, and before ``run``."""
        if not self._stopping.is_set():
            self._grace_ends_at = time.monotonic() + self._settings.grace.total_seconds()
            self._stopping.set()
            self._has_room.set()

    @property
    def running(self) -> Collection[UUID]:
        """The tasks that it runs, or is about to."""
        return self._running.keys()

    def set_limits(self, limits: Limits) -> None:
        """From now on these hold, over all processes that were told the same."""
        if limits != self._throttle.limits:
            log.info("limits of %s: %s", self.stage.full_name, limits)
            self._throttle.limits = limits

    async def set_paused(self, is_paused: bool) -> None:
        """While paused read nothing, and hand back what has not begun; what runs comes to its end."""
        if is_paused == self._is_paused or self._stopping.is_set():
            return
        self._is_paused = is_paused
        log.info("%s is %s", self.stage.full_name, "paused" if is_paused else "resumed")
        if is_paused:
            with contextlib.suppress(RedisError, OSError):
                await self._inbox.interrupt()
            waiting = [entry_id for entry_id, held in self._held.items() if not held.has_begun]
            await self._cancel(waiting)
            await self._hand_back(waiting)
        else:
            self._has_room.set()

    def cancel(self, task_id: UUID) -> None:
        """End the attempt on this task, which was cancelled: whatever it came to would change nothing."""
        held = self._held.get(self._running.get(task_id, ""))
        if held is not None and not held.is_cancelled:
            held.is_cancelled = True
            held.work.cancel()

    # Stopping

    async def _end_reading(self, reading: asyncio.Task[None]) -> None:
        """Once we stop, end the read that waits: again and again, for one that begins just now is not to be hit."""
        try:
            await self._stopping.wait()
        finally:
            # Cancelled, as when another loop failed, the loops must end by the flag: asyncio.wait_for, which redis-py
            # uses, loses cancellations before Python 3.12.
            self._stopping.set()
            self._has_room.set()
        while not reading.done():
            # If Redis is away the read ends by itself.
            with contextlib.suppress(RedisError, OSError):
                await self._inbox.interrupt()
            await asyncio.wait([reading], timeout=0.05)

    async def _wind_up(self) -> None:
        """Hand back what has not begun, wait for what runs, cancel what outlasts the grace, hand that back too."""
        waiting = [entry_id for entry_id, held in self._held.items() if not held.has_begun]
        await self._cancel(waiting)
        await self._hand_back(waiting)
        while (busy := self._busy(self._held)) and (left := self._grace_ends_at - time.monotonic()) > 0:
            await asyncio.wait(busy, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        await self._cancel(self._held)
        # Not for ever, should Postgres hang: whoever takes the entries will see what it committed of ours.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLEAN_UP):
                await self._ledger.drain()
        await self._acknowledging.drain()
        await self._parking.drain()
        await self._hand_back(list(self._held))
        await self._reporting.drain()
        try:
            await self._inbox.leave()
        except (RedisError, OSError) as error:
            log.info("the group of %s keeps our name: %s", self.stage.full_name, first_line(error))

    def _busy(self, entries: Collection[str]) -> set[asyncio.Task[None]]:
        return {held.work for entry_id in entries if not (held := self._held[entry_id]).work.done()}

    async def _cancel(self, entries: Collection[str]) -> None:
        late = self._busy(entries)
        for task in late:
            task.cancel()
        if late:
            _, stubborn = await asyncio.wait(late, timeout=CLEAN_UP)
            if stubborn:
                log.warning("%d handlers of %s ignore that we stop; leaving them", len(stubborn), self.stage.full_name)

    async def _hand_back(self, entries: Collection[str]) -> None:
        """Let anybody take those of ``entries`` that are still ours, at once; no attempt is counted."""
        left = [entry_id for entry_id in entries if entry_id in self._held]
        # An attempt that was cancelled before its first step could not say that it is over.
        self._running = {task_id: entry_id for task_id, entry_id in self._running.items() if entry_id not in left}
        if not left:
            return
        log.info("handing %d entries of %s back", len(left), self.stage.full_name)
        try:
            await self._inbox.park((entry_id, timedelta()) for entry_id in left)
        except (RedisError, OSError) as error:
            if not broker.is_group_missing(error):
                log.warning("Redis is away at our end; others take over after the lease: %s", first_line(error))
        for entry_id in left:
            self._release(entry_id, self._held[entry_id])

    # Fetching

    async def _read_loop(self) -> None:
        pause = Pause()
        while not self._stopping.is_set():
            room = await self._room()
            if self._stopping.is_set():
                return
            try:
                await self._read(room)
            except (RedisError, OSError) as error:
                await self._redis_failed("reading", error, pause)
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
            await self._sleep(min(wait, RECLAIM))
        elif not deliveries:
            await self._inbox.wait()

    async def _fetch(
        self, want: int, fetch: Callable[[int], Awaitable[list[Delivery]]], *, is_reclaimed: bool = False
    ) -> tuple[int, float, list[Delivery]]:
        """Take what ``fetch`` brings of at most ``want`` entries, as many as the stage's limits let begin.

        Returns how many these were, in how many seconds to ask again if none, and what was fetched.
        """
        async with self._fetching:
            granted, wait = await self._throttle.take(want, held=len(self._held))
            if not granted:
                return 0, wait, []
            fetched: list[Delivery] = []
            try:
                fetched = await fetch(granted)
                self._take(fetched, is_reclaimed=is_reclaimed)
            finally:
                if len(fetched) < granted:
                    await self._throttle.give_back(granted - len(fetched), held=len(self._held))
            return granted, 0.0, fetched

    async def _recover(self, pause: "Pause") -> None:
        """After a failed call: take what Redis handed us in a reply that never came."""
        while not self._stopping.is_set():
            try:
                room = await self._room()
                deliveries = await self._inbox.recover(list(self._held), room)
                self._healed(len(deliveries), "lost reply")
            except (RedisError, OSError) as error:
                await self._redis_failed("recovering", error, pause)
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
        lease = self._settings.lease.total_seconds()
        while not self._stopping.is_set():
            wait = RECLAIM * random.uniform(0.75, 1.25)
            try:
                if (share := self._share()) > 0:
                    wait = await self._reclaim_due(share, wait)
                else:
                    wait = 0.05
                now = time.monotonic()
                if now >= max(look_for_dead_at, self._may_reclaim_at) and (share := self._share()) > 0:
                    granted, dead = await self._reclaim_dead(share)
                    if dead:
                        self._healed(len(dead), "dead worker")
                        log.warning("took over %d entries of dead workers of %s", len(dead), self.stage.full_name)
                    if granted and len(dead) == granted:
                        wait = min(wait, 0.01)  # there may be more
                    elif granted:
                        # A failover may undo what we were told, and that we hear of no error: what we parked is
                        # pending under our name again.
                        ours = await self._inbox.recover(list(self._held), share - len(dead))
                        self._healed(len(ours), "lost reply")
                        self._take(ours, is_reclaimed=True)
                        await self._inbox.relist()
                        if left_over := await self._inbox.trim():
                            self._healed(left_over, "left over")
                            log.info(
                                "deleted %d entries of %s that nobody would be given again",
                                left_over, self.stage.full_name,
                            )  # fmt: skip
                        look_for_dead_at = now + lease / 4 * random.uniform(0.75, 1.25)
                pause.reset()
            except (RedisError, OSError) as error:
                await self._redis_failed("reclaiming", error, pause)
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

    async def _report(self, group: Sequence[None]) -> list[None]:
        await self._throttle.give_back(0, held=len(self._held))
        return [None] * len(group)

    def _healed(self, count: int, reason: str) -> None:
        telemetry.healed(count, reason, pipeline=self.stage.pipeline, stage=self.stage.name)

    async def _redis_failed(self, doing: str, error: Exception, pause: "Pause") -> None:
        await self._inbox.heed(error)
        # While Redis was away no heartbeat could be seen, and a wipe took them all: everybody would look dead.
        self._may_reclaim_at = time.monotonic() + self._settings.lease.total_seconds()
        if broker.is_group_missing(error):
            if pause.is_worth_a_line():
                log.info("waiting for the relay to create the stream of %s", self.stage.full_name)
        else:
            if pause.is_worth_a_line():
                log.warning("Redis: %s pauses: %s", doing, broker.told(error))
        await self._sleep(pause.next())

    async def _room(self) -> int:
        """Wait until there are free slots; how many there are. Not meaningful once stopping."""
        while not self._stopping.is_set() and self._room_left() <= 0:
            self._has_room.clear()
            await self._has_room.wait()
        return max(1, self._room_left())

    def _room_left(self) -> int:
        return 0 if self._is_paused else self.stage.concurrency - len(self._held)

    def _share(self) -> int:
        """How many entries may be reclaimed now: half of the room; and half of the slots, however full they are.

        New entries fill every slot as soon as it is free, so what is reclaimed waits for its slot here, among them:
        neither starves.
        """
        if self._is_paused:
            return 0
        reclaimed = sum(held.is_reclaimed for held in self._held.values())
        return max(self._room_left() // 2, (self.stage.concurrency + 1) // 2 - reclaimed)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but not longer than until we stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    # Running

    def _take(self, deliveries: Sequence[Delivery], *, is_reclaimed: bool = False) -> None:
        """Hold ``deliveries`` and begin to work on them."""
        fresh = [one for one in deliveries if not self._holds(_entry_id(one))]
        if not fresh:
            return
        work = asyncio.create_task(self._guarded(partial(self._work_on, fresh)))
        for delivery in fresh:
            self._held[_entry_id(delivery)] = Held(work, is_reclaimed)

    def _holds(self, entry_id: str) -> bool:
        """True if the entry was taken already, in another reply to the same end."""
        held = self._held.get(entry_id)
        return held is not None and not held.is_parting

    def _release(self, entry_id: str, held: Held | None) -> None:
        """Forget an entry, unless it was handed back, or has come again, since it was ``held``."""
        if held is not None and self._held.get(entry_id) is held:
            del self._held[entry_id]
            if self._throttle.limits.max_running is not None:
                # Others wait for it, while we may have nothing to ask for.
                self._reporting.submit(None)
        self._has_room.set()

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do ``work``; a fault of ours must neither lose its entries nor keep their slots for ever."""
        try:
            await work()
        except Exception:
            ours = [entry_id for entry_id, held in self._held.items() if held.work is asyncio.current_task()]
            log.exception("a fault in the worker itself; %d entries rest", len(ours))
            await asyncio.gather(*(self._rest(entry_id, REST_AFTER_FAULT) for entry_id in ours))

    async def _work_on(self, deliveries: list[Delivery]) -> None:
        """Load a batch and start each of its entries; the ones with nothing to do are acknowledged at once."""
        if self._stopping.is_set():
            return  # They are handed back.
        if self._is_paused:
            await self._hand_back([_entry_id(one) for one in deliveries])
            return
        tasks = list({one.task_id for one in deliveries if isinstance(one, Envelope)})
        loaded = await persist("loading", lambda: self._ledger.load(self.stage, tasks)) if tasks else {}
        if len(loaded) < len(tasks):
            # After a failover to a replica that had not heard of them, a restore, or by a stranger's hand.
            log.warning(
                "dropping %d entries of %s whose tasks Postgres does not know", len(tasks) - len(loaded),
                self.stage.full_name, extra={"task_id": str(next(task for task in tasks if task not in loaded))},
            )  # fmt: skip
        begun = 0
        for delivery in deliveries:
            entry_id = _entry_id(delivery)
            held = self._held[entry_id]
            work = loaded.get(delivery.task_id) if isinstance(delivery, Envelope) else None
            if work is None or not work.is_open or not work.is_ready:
                follow_up = partial(self._finish, entry_id)
            elif work.task_id in self._running:
                # The newer entry stands for the task from now on: it was asked for because the older one was lost,
                # or it is a repeat, and then either will do.
                older = self._running[work.task_id]
                self._running[work.task_id] = entry_id
                self._held[entry_id], self._held[older] = self._held[older], held
                follow_up = partial(self._finish, older)
            elif work.wait:
                follow_up = partial(self._rest, entry_id, work.wait)
            else:
                assert isinstance(delivery, Envelope)
                self._running[work.task_id] = entry_id
                follow_up = partial(self._attempt, delivery, work, held)
                begun += 1
            held.work = asyncio.create_task(self._guarded(follow_up))
        if begun < len(deliveries):
            await self._throttle.give_back(len(deliveries) - begun, held=len(self._held))

    async def _attempt(self, envelope: Envelope, work: Work, held: Held) -> None:
        """One attempt, from the handler to the acknowledgement."""
        began = time.monotonic()
        try:
            settled = await self._settle(envelope, work, held)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not held.is_cancelled or current is None:
                raise
            # The task was cancelled, not we: its entry has had its outcome.
            current.uncancel()
            settled = Settled(None)
        finally:
            entry_id = self._running.pop(work.task_id, envelope.entry_id)
        await self._let_entry_go(entry_id, work, settled, began)

    async def _settle(self, envelope: Envelope, work: Work, held: Held) -> Settled:
        """Run the handler when it is its turn, and commit what it comes to."""
        if envelope.deliveries > self._settings.crash_limit:
            held.has_begun = True
            return await self._attempts.reject(
                work, f"its worker died {envelope.deliveries - 1} times while running it"
            )
        is_suspect = envelope.deliveries >= min(SUSPECT, max(2, self._settings.crash_limit))
        turn = self._suspects if is_suspect else contextlib.nullcontext()
        async with turn, self._slots, self._connections:
            held.has_begun = True
            if envelope.deliveries > 1:
                await self._let_go("counting", lambda: self._inbox.count(envelope))
            return await self._attempts.run(work)

    async def _let_entry_go(self, entry_id: str, work: Work, settled: Settled, began: float) -> None:
        """Acknowledge or park the entry of an attempt whose outcome is committed."""
        verdict = settled.verdict
        outcome = str(verdict.kind) if verdict else "superseded"
        log.log(
            logging.WARNING if outcome == Kind.DEAD else logging.INFO,
            "stage %s: %s%s", self.stage.full_name, outcome,
            f" ({verdict.reason})" if verdict and verdict.reason else "",
            extra=self._fields(work) | {
                "outcome": outcome, "duration_ms": round((time.monotonic() - began) * 1000, 1),
            },
        )  # fmt: skip
        if verdict is not None and verdict.delay is not None:
            await self._rest(entry_id, verdict.delay)
        else:
            await self._finish(entry_id)

    def _fields(self, work: Work) -> dict[str, Any]:
        return {
            "pipeline": self.stage.pipeline,
            "stage": self.stage.name,
            "task_id": str(work.task_id),
            "attempt": work.attempts + 1,
            "trace_id": telemetry.trace_id(work.traceparent),
        }

    # Letting go

    async def _finish(self, entry_id: str) -> None:
        held = self._held.get(entry_id)
        await self._acknowledging.submit(entry_id)
        self._release(entry_id, held)

    async def _rest(self, entry_id: str, delay: timedelta) -> None:
        held = self._held.get(entry_id)
        if held is not None:
            held.is_parting = True
        await self._parking.submit((entry_id, delay))
        self._release(entry_id, held)

    async def _acknowledge(self, entries: Sequence[str]) -> Sequence[None]:
        await self._let_go("acknowledging", lambda: self._inbox.acknowledge(entries))
        return [None] * len(entries)

    async def _park(self, entries: Sequence[tuple[str, timedelta]]) -> Sequence[None]:
        await self._let_go("parking", lambda: self._inbox.park(entries))
        return [None] * len(entries)

    async def _let_go(self, doing: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Tell Redis, however long it is away. What it has forgotten meanwhile needs no telling."""
        pause = Pause()
        while True:
            try:
                await work()
                return
            except (RedisError, OSError) as error:
                if broker.is_group_missing(error):
                    return
                if self._stopping.is_set():
                    log.warning("Redis is away at our end (%s): %s", doing, first_line(error))
                    return
                await self._redis_failed(doing, error, pause)


def _entry_id(delivery: Delivery) -> str:
    return delivery.entry_id if isinstance(delivery, Envelope) else delivery
