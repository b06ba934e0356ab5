"""One stage in a worker process: what it holds, and how it runs it.

Always in this order: read, run, commit, acknowledge. Redis says what to look at, Postgres says what is true: an entry
is a hint that there may be something to do. So an entry that comes twice, late or out of a wiped stream does no harm,
and one that is lost is asked for again.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncEngine

from ..core import broker, metrics, telemetry
from ..core.backoff import Pause
from ..core.batching import GroupCommit
from ..core.errors import first_line
from ..core.event import Envelope
from ..core.pipeline import Stage
from ..core.settings import Settings
from ..outbox.process import Running
from .attempt import Attempts, persist
from .breaker import Breaker
from .fetcher import Fetcher
from .holding import Held, Holding, entry_id_of
from .inbox import Delivery
from .lanes import Lanes
from .ledger import Kind, Ledger, Settled, Work
from .runner import HandlerThreads
from .throttle import Limits, Throttle

log = logging.getLogger(__name__)

SUSPECT = 3
"""From this delivery on, or the last that the limit allows, an entry may have killed its worker, and runs with no other
suspect beside it, so that those that merely ran beside a killer come through before the limit."""

REST_AFTER_FAULT = timedelta(seconds=10)
"""How long an entry rests when we ourselves failed on it."""

CLEAN_UP = 5.0
"""Seconds that a handler has to end after it was cancelled at our stop."""


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


class Consumer:
    """The consumer of one stage's group in this process. ``run`` until ``stop``."""

    def __init__(
        self, stage: Stage, inbox: Lanes, throttle: Throttle, shared: Shared, breaker: Breaker | None = None
    ) -> None:
        self.stage = stage
        self._inbox = inbox
        self._inbox.set_open(stage.priorities)  # until Postgres says what is in force
        self._throttle = throttle
        self._settings = shared.settings
        self._ledger = shared.ledger
        self._attempts = Attempts(stage, shared.ledger, shared.engine, shared.threads)
        self._suspects = shared.suspects
        self._connections = shared.connections if stage.transaction else contextlib.nullcontext()
        self._slots = asyncio.Semaphore(stage.concurrency)
        self._holding = Holding(stage.concurrency)
        self._breaker = breaker
        if breaker is not None:
            self._holding.limit = lambda: breaker.limit
            breaker.on_change = self._holding.notify
        self._running: dict[UUID, str] = {}
        """The tasks that we run, and the entry that stands for each."""
        self._stopping = asyncio.Event()
        self._grace_ends_at = 0.0
        self._fetcher = Fetcher(
            stage, inbox, throttle, self._holding,
            take=self._take, lease=shared.settings.lease, stopping=self._stopping,
        )  # fmt: skip
        self._acknowledging: GroupCommit[str, None] = GroupCommit(self._acknowledge)
        self._parking: GroupCommit[tuple[str, timedelta], None] = GroupCommit(self._park)
        self._reporting: GroupCommit[None, None] = GroupCommit(self._report)

    async def run(self) -> None:
        """Fetch and run entries until ``stop``; then let what runs finish within the grace, hand the rest back."""
        try:
            await self._fetcher.run()
            # Only now: what the last read has brought is ours, and must be handed back with the rest.
            await self._wind_up()
        finally:
            await self._inbox.close()

    def stop(self) -> None:
        """Begin to stop; returns at once. Safe to call twice, and before ``run``."""
        if not self._stopping.is_set():
            self._grace_ends_at = time.monotonic() + self._settings.grace.total_seconds()
            self._stopping.set()
            self._holding.notify()

    @property
    def running(self) -> Collection[UUID]:
        """The tasks that it runs, or is about to."""
        return self._running.keys()

    @property
    def attempts(self) -> Collection[Running]:
        """The attempts that it makes just now."""
        return [held.attempt for held in self._holding.entries.values() if held.attempt is not None]

    def set_limits(self, limits: Limits) -> None:
        """From now on these hold, over all processes that were told the same."""
        if limits != self._throttle.limits:
            log.info("limits of %s: %s", self.stage.full_name, limits)
            self._throttle.limits = limits

    def set_rest(self, rest: timedelta | None, trouble: str | None) -> None:
        """For so long the service behind the stage is to be left alone, ``None``: not at all; and why."""
        if self._breaker is not None:
            self._breaker.hear(rest, trouble)

    async def set_priorities(self, are_on: bool) -> None:
        """Read all lanes of the stage from now on, or the normal one alone."""
        if are_on == self._inbox.are_open or self._stopping.is_set():
            return
        log.info("%s has %s", self.stage.full_name, "priorities" if are_on else "no priorities any more")
        self._inbox.set_open(are_on)
        with contextlib.suppress(RedisError, OSError):
            await self._inbox.interrupt()

    async def set_paused(self, is_paused: bool) -> None:
        """While paused read nothing, and hand back what has not begun; what runs comes to its end."""
        if is_paused == self._holding.is_closed or self._stopping.is_set():
            return
        self._holding.is_closed = is_paused
        log.info("%s is %s", self.stage.full_name, "paused" if is_paused else "resumed")
        if is_paused:
            with contextlib.suppress(RedisError, OSError):
                await self._inbox.interrupt()
            waiting = self._holding.waiting
            await self._cancel(waiting)
            await self._hand_back(waiting)
        else:
            self._holding.notify()

    def cancel(self, task_id: UUID) -> None:
        """End the attempt on this task, which was cancelled: whatever it came to would change nothing."""
        held = self._holding.entries.get(self._running.get(task_id, ""))
        if held is not None and not held.is_cancelled:
            held.is_cancelled = True
            held.work.cancel()

    # Stopping

    async def _wind_up(self) -> None:
        """Hand back what has not begun, wait for what runs, cancel what outlasts the grace, hand that back too."""
        waiting = self._holding.waiting
        await self._cancel(waiting)
        await self._hand_back(waiting)
        entries = self._holding.entries
        while (busy := self._holding.busy(entries)) and (left := self._grace_ends_at - time.monotonic()) > 0:
            await asyncio.wait(busy, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        await self._cancel(entries)
        # Not for ever, should Postgres hang: whoever takes the entries will see what it committed of ours.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLEAN_UP):
                await self._ledger.drain()
        await self._acknowledging.drain()
        await self._parking.drain()
        await self._hand_back(list(entries))
        await self._reporting.drain()
        try:
            await self._inbox.leave()
        except (RedisError, OSError) as error:
            log.info("the group of %s keeps our name: %s", self.stage.full_name, first_line(error))

    async def _cancel(self, entries: Collection[str]) -> None:
        late = self._holding.busy(entries)
        for task in late:
            task.cancel()
        if late:
            _, stubborn = await asyncio.wait(late, timeout=CLEAN_UP)
            if stubborn:
                log.warning("%d handlers of %s ignore that we stop; leaving them", len(stubborn), self.stage.full_name)

    async def _hand_back(self, entries: Collection[str]) -> None:
        """Let anybody take those of ``entries`` that are still ours, at once; no attempt is counted."""
        left = [entry_id for entry_id in entries if entry_id in self._holding.entries]
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
            self._release(entry_id, self._holding.entries[entry_id])

    # Running

    def _take(self, deliveries: Sequence[Delivery], *, is_reclaimed: bool = False) -> None:
        """Hold ``deliveries`` and begin to work on them."""
        fresh = [one for one in deliveries if not self._holding.holds(entry_id_of(one))]
        if not fresh:
            return
        work = asyncio.create_task(self._guarded(partial(self._work_on, fresh)))
        for delivery in fresh:
            self._holding.entries[entry_id_of(delivery)] = Held(work, is_reclaimed)

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do ``work``; a fault of ours must neither lose its entries nor keep their slots for ever."""
        try:
            await work()
        except Exception:
            ours = [entry_id for entry_id, held in self._holding.entries.items() if held.work is asyncio.current_task()]
            log.exception("a fault in the worker itself; %d entries rest", len(ours))
            await asyncio.gather(*(self._rest(entry_id, REST_AFTER_FAULT) for entry_id in ours))

    async def _work_on(self, deliveries: list[Delivery]) -> None:
        """Load a batch and start each of its entries; the ones with nothing to do are acknowledged at once."""
        if self._stopping.is_set():
            return  # They are handed back.
        if self._holding.is_closed:
            await self._hand_back([entry_id_of(one) for one in deliveries])
            return
        tasks = list({one.task_id for one in deliveries if isinstance(one, Envelope)})
        loaded = await persist("loading", lambda: self._ledger.load(self.stage, tasks)) if tasks else {}
        if len(loaded) < len(tasks):
            # After a failover to a replica that had not heard of them, a restore, or by a stranger's hand.
            log.warning(
                "dropping %d entries of %s whose tasks Postgres does not know", len(tasks) - len(loaded),
                self.stage.full_name, extra={"task_id": str(next(task for task in tasks if task not in loaded))},
            )  # fmt: skip
        begun = repeats = 0
        for delivery in deliveries:
            entry_id = entry_id_of(delivery)
            held = self._holding.entries[entry_id]
            work = loaded.get(delivery.task_id) if isinstance(delivery, Envelope) else None
            if work is None or not work.is_open or not work.is_ready:
                follow_up = partial(self._finish, entry_id)
                repeats += work is not None and not work.is_open
            elif work.task_id in self._running:
                # The newer entry stands for the task from now on: it was asked for because the older one was lost,
                # or it is a repeat, and then either will do.
                older = self._running[work.task_id]
                self._running[work.task_id] = entry_id
                self._holding.entries[entry_id], self._holding.entries[older] = self._holding.entries[older], held
                follow_up = partial(self._finish, older)
            elif work.wait:
                follow_up = partial(self._rest, entry_id, work.wait)
            else:
                assert isinstance(delivery, Envelope)
                self._running[work.task_id] = entry_id
                follow_up = partial(self._attempt, delivery, replace(work, asked_at=delivery.asked_at), held)
                begun += 1
            held.work = asyncio.create_task(self._guarded(follow_up))
        if repeats:
            metrics.duplicated(self.stage.pipeline, self.stage.name, repeats)
        if begun < len(deliveries):
            await self._throttle.give_back(len(deliveries) - begun, held=len(self._holding))

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
            if not (work.attempts or held.is_reclaimed):
                metrics.waited(self.stage.pipeline, self.stage.name, time.time() - envelope.time / 1000)
            # What a service has reported ends the attempt that began when the work was handed to it.
            attempt = work.attempts + (work.answer is None)
            held.attempt = Running(work.task_id, self.stage.name, attempt, datetime.now(UTC))
            if envelope.deliveries > 1:
                await self._let_go("counting", lambda: self._inbox.count(envelope))
            return await self._attempts.run(work)

    async def _let_entry_go(self, entry_id: str, work: Work, settled: Settled, began: float) -> None:
        """Acknowledge or park the entry of an attempt whose outcome is committed."""
        verdict = settled.verdict
        outcome = str(verdict.kind) if verdict else "superseded"
        seconds = time.monotonic() - began
        metrics.attempted(self.stage.pipeline, self.stage.name, outcome, seconds)
        if settled.ended:
            metrics.ended(self.stage.pipeline, settled.ended, time.time() - work.created_at.timestamp())
        log.log(
            logging.WARNING if outcome == Kind.DEAD else logging.INFO,
            "stage %s: %s%s", self.stage.full_name, outcome,
            f" ({verdict.reason})" if verdict and verdict.reason else "",
            extra=self._fields(work) | {
                "outcome": outcome, "duration_ms": round(seconds * 1000, 1),
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
        held = self._holding.entries.get(entry_id)
        await self._acknowledging.submit(entry_id)
        self._release(entry_id, held)

    async def _rest(self, entry_id: str, delay: timedelta) -> None:
        held = self._holding.entries.get(entry_id)
        if held is not None:
            held.is_parting = True
        await self._parking.submit((entry_id, delay))
        self._release(entry_id, held)

    def _release(self, entry_id: str, held: Held | None) -> None:
        if self._holding.release(entry_id, held) and self._throttle.limits.max_running is not None:
            # Others wait for it, while we may have nothing to ask for.
            self._reporting.submit(None)

    async def _acknowledge(self, entries: Sequence[str]) -> Sequence[None]:
        await self._let_go("acknowledging", lambda: self._inbox.acknowledge(entries))
        return [None] * len(entries)

    async def _park(self, entries: Sequence[tuple[str, timedelta]]) -> Sequence[None]:
        await self._let_go("parking", lambda: self._inbox.park(entries))
        return [None] * len(entries)

    async def _report(self, group: Sequence[None]) -> list[None]:
        await self._throttle.give_back(0, held=len(self._holding))
        return [None] * len(group)

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
                await self._fetcher.redis_failed(doing, error, pause)
