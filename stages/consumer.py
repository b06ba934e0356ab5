"""One stage in a worker process: what it holds, and the loops that fetch and run it.

Always in this order: read, run, commit, acknowledge. Redis says what to look at, Postgres says what is true: an entry
is a hint that there may be something to do. So an entry that comes twice, late or out of a wiped stream does no harm,
and one that is lost is asked for again.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ..core import broker, telemetry
from ..core.backoff import Pause
from ..core.batching import GroupCommit
from ..core.database import is_transient, lost_connection
from ..core.errors import first_line
from ..core.event import Envelope
from ..core.outcome import Completed, Reject, Retry
from ..core.pipeline import Stage
from ..core.settings import Settings
from .inbox import Delivery, Inbox
from .ledger import Attempt, Kind, Ledger, Settled, Work
from .runner import HandlerThreads, Run, run_handler

log = logging.getLogger(__name__)

RECLAIM = 0.5
"""Seconds between two looks for entries that are due."""

SUSPECT = 3
"""From this delivery on an entry may have killed its worker, and runs with no other suspect beside it, so that those
that merely ran beside a killer come through before the limit."""

LOST_CONNECTIONS = 3
"""How often an attempt begins anew, uncounted, because its transaction lost the server."""

REST_AFTER_FAULT = timedelta(seconds=10)
"""How long an entry rests when we ourselves failed on it."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shared:
    """What the stages of one process have in common."""

    settings: Settings
    ledger: Ledger
    engine: AsyncEngine
    client: Redis
    threads: HandlerThreads
    connections: asyncio.Semaphore
    """As many as handlers may hold; loading and committing must find one too."""
    suspects: asyncio.Lock


class Consumer:
    """The consumer of one stage's group in this process. ``run`` until ``stop``."""

    def __init__(self, stage: Stage, inbox: Inbox, shared: Shared) -> None:
        self.stage = stage
        self._inbox = inbox
        self._settings = shared.settings
        self._ledger = shared.ledger
        self._engine = shared.engine
        self._client = shared.client
        self._threads = shared.threads
        self._connections = shared.connections
        self._suspects = shared.suspects
        self._held: dict[str, asyncio.Task[None]] = {}
        self._running: set[UUID] = set()
        self._has_room = asyncio.Event()
        self._stopping = asyncio.Event()
        self._is_done = asyncio.Event()
        self._may_reclaim_at = 0.0
        self._acknowledging: GroupCommit[str, None] = GroupCommit(self._acknowledge)
        self._parking: GroupCommit[tuple[str, timedelta], None] = GroupCommit(self._park)

    async def run(self) -> None:
        """Fetch and run entries until ``stop`` has come to its end."""
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._read_loop())
            loops.create_task(self._reclaim_loop())
            loops.create_task(self._is_done.wait())

    async def stop(self) -> None:
        """Stop reading, wait for what runs, cancel what outlasts the grace, hand everything left back."""
        self._stopping.set()
        self._has_room.set()
        try:
            await self._inbox.interrupt()
        except (RedisError, OSError):
            log.info("Redis is away; the read ends by itself")
        deadline = time.monotonic() + self._settings.grace.total_seconds()
        while self._held and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(self._held.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        while late := [task for task in self._held.values() if not task.done()]:
            for task in late:
                task.cancel()
            await asyncio.wait(late, timeout=5)
        await self._ledger.drain()
        await self._acknowledging.drain()
        await self._parking.drain()
        try:
            if self._held:
                log.info("handing %d entries of %s back", len(self._held), self.stage.full_name)
                await self._inbox.park((entry_id, timedelta()) for entry_id in self._held)
            await self._inbox.leave()
        except (RedisError, OSError) as error:
            log.warning("Redis is away at our end; others take over after the lease: %s", first_line(error))
        await self._inbox.close()
        self._is_done.set()

    # Fetching

    async def _read_loop(self) -> None:
        pause = Pause()
        while not self._stopping.is_set():
            room = await self._room()
            if self._stopping.is_set():
                return
            try:
                deliveries = await self._inbox.read(room)
            except (RedisError, OSError) as error:
                await self._redis_failed("reading", error, pause)
                await self._recover(pause)
                continue
            pause.reset()
            if deliveries:
                self._take(deliveries)

    async def _recover(self, pause: "Pause") -> None:
        """After a failed read: take what Redis handed us in a reply that never came."""
        while not self._stopping.is_set():
            try:
                room = await self._room()
                deliveries = await self._inbox.recover(list(self._held), room)
            except (RedisError, OSError) as error:
                await self._redis_failed("recovering", error, pause)
                if broker.is_group_missing(error):
                    return
                continue
            self._take(deliveries)
            if len(deliveries) < room:
                return

    async def _reclaim_loop(self) -> None:
        """Fetch what is due again, and what dead workers left; a share of the room, so that neither starves."""
        pause = Pause()
        look_for_dead_at = 0.0
        lease = self._settings.lease.total_seconds()
        while not self._stopping.is_set():
            wait = RECLAIM * random.uniform(0.75, 1.25)
            try:
                share = max(1, self._room_left() // 2)
                if self._room_left() > 0:
                    due, next_due = await self._inbox.reclaim_due(share)
                    self._take(due)
                    if due and len(due) == share:
                        wait = 0.01
                    elif next_due is not None:
                        wait = min(wait, max(next_due.total_seconds(), 0.005))
                now = time.monotonic()
                if now >= max(look_for_dead_at, self._may_reclaim_at) and self._room_left() > 0:
                    share = max(1, self._room_left() // 2)
                    dead = await self._inbox.reclaim_dead(share)
                    if dead:
                        log.warning("took over %d entries of dead workers of %s", len(dead), self.stage.full_name)
                    self._take(dead)
                    if len(dead) < share:
                        await self._inbox.relist()
                        look_for_dead_at = now + lease / 4 * random.uniform(0.75, 1.25)
                pause.reset()
            except (RedisError, OSError) as error:
                if not broker.is_group_missing(error):
                    await self._redis_failed("reclaiming", error, pause)
                else:
                    await self._sleep(pause.next())
                continue
            await self._sleep(wait)

    async def _redis_failed(self, doing: str, error: Exception, pause: "Pause") -> None:
        await broker.reset_if_demoted(self._client, error)
        if broker.is_group_missing(error):
            if pause.is_worth_a_line():
                log.info("waiting for the relay to create the stream of %s", self.stage.full_name)
        else:
            # While Redis was away no heartbeat could be seen: everybody would look dead.
            self._may_reclaim_at = time.monotonic() + self._settings.lease.total_seconds()
            if pause.is_worth_a_line():
                log.warning("Redis: %s pauses: %s", doing, first_line(error))
        await self._sleep(pause.next())

    async def _room(self) -> int:
        """Wait until there are free slots; how many there are. Not meaningful once stopping."""
        while not self._stopping.is_set() and self._room_left() <= 0:
            self._has_room.clear()
            await self._has_room.wait()
        return max(1, self._room_left())

    def _room_left(self) -> int:
        return self.stage.concurrency - len(self._held)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but not longer than until we stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    # Running

    def _take(self, deliveries: Sequence[Delivery]) -> None:
        """Hold ``deliveries`` and begin to work on them."""
        fresh = [one for one in deliveries if _entry_id(one) not in self._held]
        if not fresh:
            return
        work = asyncio.create_task(self._guarded([_entry_id(one) for one in fresh], self._work_on(fresh)))
        for delivery in fresh:
            self._held[_entry_id(delivery)] = work

    def _release(self, entry_id: str) -> None:
        self._held.pop(entry_id, None)
        self._has_room.set()

    async def _guarded(self, entries: Sequence[str], work: Coroutine[Any, Any, None]) -> None:
        """Do ``work`` on ``entries``; a fault of ours must neither lose them nor keep their slots for ever."""
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a fault in the worker itself; %d entries rest", len(entries))
            await asyncio.gather(*(self._rest(entry_id, REST_AFTER_FAULT) for entry_id in entries))

    async def _work_on(self, deliveries: list[Delivery]) -> None:
        """Load a batch and start each of its entries; the ones with nothing to do are acknowledged at once."""
        tasks = list({one.task_id for one in deliveries if isinstance(one, Envelope)})
        loaded = await self._persist("loading", lambda: self._ledger.load(self.stage, tasks)) if tasks else {}
        for delivery in deliveries:
            entry_id = _entry_id(delivery)
            work = loaded.get(delivery.task_id) if isinstance(delivery, Envelope) else None
            if work is None or not work.is_open or not work.is_ready or work.task_id in self._running:
                follow_up = self._finish(entry_id)
            elif work.wait:
                follow_up = self._rest(entry_id, work.wait)
            else:
                assert isinstance(delivery, Envelope)
                self._running.add(work.task_id)
                follow_up = self._attempt(delivery, work)
            self._held[entry_id] = asyncio.create_task(self._guarded([entry_id], follow_up))

    async def _attempt(self, envelope: Envelope, work: Work) -> None:
        """One attempt, from the handler to the acknowledgement."""
        try:
            if envelope.deliveries > self._settings.crash_limit:
                died = envelope.deliveries - 1
                run = Run(Reject(f"its worker died {died} times while running it"))
                await self._conclude(envelope, work, run, _now(), time.monotonic())
            elif envelope.deliveries >= SUSPECT:
                async with self._suspects:
                    await self._run(envelope, work)
            else:
                await self._run(envelope, work)
        finally:
            self._running.discard(work.task_id)

    async def _run(self, envelope: Envelope, work: Work) -> None:
        started_at, began = _now(), time.monotonic()
        if self.stage.transaction is None:
            run = await run_handler(self.stage, work.task(self.stage), self._threads)
        else:
            async with self._connections:
                came_to = await self._run_in_transaction(work, started_at)
            if isinstance(came_to, Settled):
                await self._let_entry_go(envelope, work, came_to, began)
                return
            run = came_to
        await self._conclude(envelope, work, run, started_at, began)

    async def _run_in_transaction(self, work: Work, started_at: datetime) -> Run | Settled:
        """Run a handler that takes a connection; its success commits with what it wrote, anything else undoes that.

        If the server is lost on the way nobody knows what was committed: look, and begin anew if it was not.
        """
        for _ in range(LOST_CONNECTIONS):
            connection = await self._persist("connecting", lambda: self._engine.connect().start())
            try:
                run = await run_handler(self.stage, work.task(self.stage), self._threads, connection)
                if isinstance(run.outcome, Completed):
                    return await self._commit_within(connection, Attempt(self.stage, work, run.outcome, started_at))
                if not connection.invalidated:
                    return run
            except InvalidRequestError as error:
                return Run(
                    Retry(f"a handler must leave its transaction open, postroad commits it: {first_line(error)}")
                )
            except Exception as error:
                run = Run(Retry(f"the transaction failed: {first_line(error)}"))
                if not lost_connection(error):
                    return run
            finally:
                await connection.close()
            fresh = (await self._persist("loading", lambda: self._ledger.load(self.stage, [work.task_id]))).get(
                work.task_id
            )
            if fresh is None or not fresh.is_open:
                return Settled(None)
        return run

    async def _commit_within(self, connection: AsyncConnection, attempt: Attempt) -> Settled:
        settled = await self._ledger.commit_within(connection, attempt)
        if settled.verdict is None:
            await connection.rollback()
        else:
            await connection.commit()
        return settled

    async def _conclude(self, envelope: Envelope, work: Work, run: Run, started_at: datetime, began: float) -> None:
        """Commit an outcome with the others of this moment, then acknowledge or park its entry."""
        attempt = Attempt(self.stage, work, run.outcome, started_at, run.error)
        try:
            settled = await self._persist("committing", lambda: self._ledger.commit(attempt))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # Postgres refused this very outcome, and would refuse it again: say so where a person looks.
            log.exception("an outcome cannot be stored", extra=self._fields(work))
            refused = Reject(f"its outcome cannot be stored: {first_line(error)}")
            attempt = Attempt(self.stage, work, refused, started_at)
            settled = await self._persist("committing", lambda: self._ledger.commit(attempt))
        await self._let_entry_go(envelope, work, settled, began)

    async def _let_entry_go(self, envelope: Envelope, work: Work, settled: Settled, began: float) -> None:
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
            await self._rest(envelope.entry_id, verdict.delay)
        else:
            await self._finish(envelope.entry_id)

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
        await self._acknowledging.submit(entry_id)
        self._release(entry_id)

    async def _rest(self, entry_id: str, delay: timedelta) -> None:
        await self._parking.submit((entry_id, delay))
        self._release(entry_id)

    async def _acknowledge(self, entries: Sequence[str]) -> Sequence[None]:
        await self._let_go("acknowledging", lambda: self._inbox.acknowledge(entries))
        return [None] * len(entries)

    async def _park(self, entries: Sequence[tuple[str, timedelta]]) -> Sequence[None]:
        await self._let_go("parking", lambda: self._inbox.park(entries))
        return [None] * len(entries)

    async def _let_go(self, doing: str, work: Callable[[], Coroutine[Any, Any, int]]) -> None:
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

    async def _persist(self, doing: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do ``work`` with Postgres, again and again while it is away."""
        pause = Pause()
        while True:
            try:
                return await work()
            except Exception as error:
                if not is_transient(error):
                    raise
                if pause.is_worth_a_line() and lost_connection(error):
                    log.warning("Postgres: %s pauses: %s", doing, first_line(error))
            await self._sleep(pause.next())


def _entry_id(delivery: Delivery) -> str:
    return delivery.entry_id if isinstance(delivery, Envelope) else delivery


def _now() -> datetime:
    return datetime.now(UTC)
