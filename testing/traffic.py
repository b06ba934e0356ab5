"""A relay and workers as asyncio tasks of this process: started, stopped, and killed."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from ..core.database import Statements, make_engine
from ..core.pipeline import Stage
from ..core.settings import Settings
from ..relay.relay import Relay
from ..stages.worker import Worker

POLL = 0.02
"""Seconds between two looks at what is waited for."""


async def until(condition: Callable[[], Awaitable[bool]], *, seconds: float = 60) -> None:
    """Wait for ``condition``; ``TimeoutError`` if it does not come true."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - what a server says, it says when it is asked
            await asyncio.sleep(POLL)


class Traffic:
    """The relay and the workers of one database and key prefix."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.workers: dict[Worker, asyncio.Task[None]] = {}
        self._relaying: asyncio.Task[None] | None = None

    def relay(self) -> None:
        """Start the relay, unless it runs."""
        if self._relaying is None:
            self._relaying = asyncio.create_task(Relay(self.settings).run())

    def start(self, stages: Iterable[Stage], settings: Settings | None = None) -> Worker:
        """Start a worker for ``stages``."""
        worker = Worker(settings or self.settings, stages)
        self.workers[worker] = asyncio.create_task(worker.run())
        return worker

    async def finish(self, worker: Worker) -> None:
        """Wait until ``worker`` has ended, and hear of its errors."""
        await self.workers.pop(worker)

    async def stop(self, worker: Worker) -> None:
        """Stop ``worker`` as SIGTERM does."""
        worker.stop()
        await self.finish(worker)

    async def kill(self, worker: Worker) -> None:
        """End ``worker`` and leave things as SIGKILL does, once its lease is over.

        What runs is neither concluded nor handed back, and what it holds stays pending under its name. What this
        cannot leave out: handlers that run are cancelled, so their ``finally`` runs; those in threads run on.
        """
        consumers = worker._consumers
        for consumer in consumers:
            # What arrives from now on has arrived at a process that is dead.
            setattr(consumer._fetcher, "_take", _drop)  # noqa: B010 - a method
        works = {held.work for consumer in consumers for held in consumer._holding.entries.values()}
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        for consumer in consumers:
            await consumer._ledger.drain()
            await consumer._acknowledging.drain()
            await consumer._parking.drain()
            await consumer._reporting.drain()
        running = self.workers.pop(worker)
        running.cancel()
        await asyncio.wait([running])

    def check(self) -> None:
        """Raise what ended the relay or a worker, if one has ended by itself."""
        tasks = [*self.workers.values(), *([self._relaying] if self._relaying else [])]
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def close(self) -> None:
        """Stop all of them, and return when none has a connection left; raises what ended a worker."""
        for worker in self.workers:
            worker.stop()
        try:
            for worker in list(self.workers):
                await self.finish(worker)
        finally:
            if self._relaying is not None:
                self._relaying.cancel()
                await asyncio.wait([self._relaying])
            # One that was still being made, when its task was cancelled, is closed by the garbage collector.
            gc.collect()
            await self._until_disconnected()

    async def _until_disconnected(self) -> None:
        engine = make_engine(self.settings, application="postroad testing", pool=3)
        sql = Statements(__package__ or "", self.settings.schema)

        async def are_disconnected() -> bool:
            async with engine.connect() as connection:
                return not (await connection.exec_driver_sql(sql["connections"])).scalar_one()

        try:
            await until(are_disconnected, seconds=10)
        finally:
            await engine.dispose()


def _drop(*_: Any, **__: Any) -> None: ...
