"""Tell the other workers that this process lives.

From a thread of its own, so that a handler that blocks the event loop does not make the process look dead. What it
cannot tell from a hung handler: that is what the handler's timeout is for.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Mapping

from redis.asyncio import Redis
from redis.exceptions import RedisError

from ..core import broker
from ..core.errors import first_line
from ..core.settings import Settings

log = logging.getLogger(__name__)

LIFE = 2 / 3
"""For how much of a lease a beat lets a worker seem alive: within the rest of the lease others have to notice."""

BEATS = 4
"""How often it beats in that time: so many may be late, or lost, before it is taken for dead."""


class Heartbeat:
    """Keeps one key alive in each of some shards until stopped: ``LIFE`` of a lease from each beat on.

    ``keys`` are by shard. A server that hangs does not delay the beats to the other shards.
    """

    def __init__(self, settings: Settings, keys: Mapping[int, str]) -> None:
        self._settings = settings
        self._keys = dict(keys)
        self._life = round(settings.lease.total_seconds() * LIFE * 1000)
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="heartbeat", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Beat once, so that nobody takes us for dead from the start, then go on in the thread."""
        self._thread.start()
        self._has_begun.wait()

    def stop(self) -> None:
        """Stop, and say so: what is left under our name may be taken at once. Safe to call twice, not before start."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(timeout=5)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        clients = broker.Clients(self._settings, connections=1)
        beats = [(clients.of(shard), key) for shard, key in self._keys.items()]
        try:
            await asyncio.gather(*(self._beat(*one) for one in beats))
            self._has_begun.set()
            await asyncio.gather(*(self._go_on(*one) for one in beats))
        finally:
            self._has_begun.set()
            await clients.aclose()

    async def _go_on(self, client: Redis, key: str) -> None:
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(self._life / 1000 / BEATS):
                    await self._stopping.wait()
            except TimeoutError:
                await self._beat(client, key)
        try:
            await client.delete(key)
        except (RedisError, OSError) as error:
            log.info("Redis is away at our end: %s", first_line(error))

    async def _beat(self, client: Redis, key: str) -> None:
        try:
            # A server that is full refuses SET, but lets a life be prolonged.
            if await client.getex(key, px=self._life) is None:
                await client.set(key, self._life, px=self._life)
        except Exception as error:
            # Whatever it is: a loop that ended here would make us look dead for good.
            await broker.reset_if_demoted(client, error)
            log.warning("heartbeat missed: %s", broker.told(error))
