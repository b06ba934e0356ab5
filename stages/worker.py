"""One worker process: the connections that its stages share, its name, its heartbeat, its beginning and its end."""

import asyncio
import logging
from collections.abc import Iterable

from ..core import broker, metrics
from ..core.broker import Keys
from ..core.database import make_engine
from ..core.pipeline import Stage
from ..core.settings import Settings
from ..outbox.process import Registration, Role, process_name
from .bind import bind
from .consumer import CLEAN_UP, Consumer, Shared
from .control import Control
from .heartbeat import Heartbeat
from .lanes import Lanes
from .ledger import Ledger
from .runner import HandlerThreads
from .throttle import Throttle

log = logging.getLogger(__name__)

HUNG_LIMIT = 200
"""Plain functions that may hang in a process, each in its thread, before it ends to be rid of them."""


class Worker:
    """Runs ``stages`` until ``stop`` is called. One per process."""

    def __init__(self, settings: Settings, stages: Iterable[Stage]) -> None:
        self.name = process_name()
        self._engine = make_engine(settings, application=f"postroad stage {self.name}")
        self._clients = broker.Clients(settings)
        self._threads = HandlerThreads(HUNG_LIMIT)
        self._ledger = Ledger(self._engine, settings.schema, self.name)
        shared = Shared(
            settings=settings,
            ledger=self._ledger,
            engine=self._engine,
            threads=self._threads,
            connections=asyncio.Semaphore(settings.pool - 2),
            suspects=asyncio.Lock(),
        )
        keys = Keys(settings.prefix, settings.shards)
        self._bound = [bind(stage, self._engine, settings) for stage in stages]
        placed = [(one, keys.shard_of(one.stage.pipeline, one.stage.name)) for one in self._bound]
        self._consumers = [
            Consumer(
                one.stage,
                Lanes(
                    one.stage.pipeline,
                    one.stage.name,
                    consumer=self.name,
                    keys=keys,
                    client=self._clients.of(shard),
                    reader=broker.reading_client(settings, shard=shard),
                ),
                Throttle(one.stage, consumer=self.name, keys=keys, client=self._clients.of(shard)),
                shared,
                one.breaker,
            )
            for one, shard in placed
        ]
        self._heartbeat = Heartbeat(settings, {shard: keys.alive(shard, self.name) for _, shard in placed})
        self._control = Control(self._engine, settings.schema, self._consumers)
        self._registration = Registration(
            self._engine,
            settings.schema,
            Role.STAGE,
            name=self.name,
            stages=[one.stage.full_name for one in self._consumers],
            running=lambda: [run for consumer in self._consumers for run in consumer.attempts],
        )
        self._stopping = asyncio.Event()

    @property
    def abandoned_threads(self) -> int:
        """Threads that still run a handler whose time was up; they end with the process."""
        return self._threads.abandoned

    @property
    def is_worn_out(self) -> bool:
        """True if it stopped by itself, because too many handlers hang in it: a new process takes its place."""
        return self._threads.is_full.is_set()

    async def run(self) -> None:
        """Work until ``stop``; then stop reading, let what runs finish within the grace, hand the rest back."""
        # Before the first entry is ours: without a heartbeat it would be taken from us.
        await asyncio.to_thread(self._heartbeat.start)
        for consumer in self._consumers:
            metrics.announce_stage(consumer.stage.pipeline, consumer.stage.name)
        names = ", ".join(one.stage.full_name for one in self._consumers)
        log.info("working on %s", names, extra={"worker": self.name})
        controlling = asyncio.create_task(self._control.run())
        tiring = asyncio.create_task(self._stop_when_worn_out())
        try:
            async with self._registration, asyncio.TaskGroup() as group:
                for consumer in self._consumers:
                    group.create_task(consumer.run())
                group.create_task(self._await_stop())
        finally:
            self._control.stop()
            await asyncio.wait([controlling], timeout=1)  # not for ever, should Postgres hang
            for beside in (controlling, tiring):
                beside.cancel()
            await asyncio.gather(controlling, tiring, return_exceptions=True)
            await asyncio.to_thread(self._heartbeat.stop)
            await self._clients.aclose()
            await self._ledger.cancel(within=CLEAN_UP)
            for one in self._bound:
                await one.close()
            await self._engine.dispose()
        log.info("stopped", extra={"worker": self.name})

    def stop(self) -> None:
        """Begin to stop; returns at once. Safe to call twice, and before ``run``."""
        self._stopping.set()

    async def _stop_when_worn_out(self) -> None:
        await self._threads.is_full.wait()
        log.error(
            "%d handlers have not returned though their time is up, and keep their threads: ending, for a new process",
            self._threads.abandoned, extra={"worker": self.name},
        )  # fmt: skip
        self.stop()

    async def _await_stop(self) -> None:
        await self._stopping.wait()
        log.info("stopping", extra={"worker": self.name})
        for consumer in self._consumers:
            consumer.stop()
