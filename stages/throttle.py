"""How much of a stage may begin: its rate, and how many of its attempts run at once, over all of its processes."""

import contextlib
import logging
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, RedisError

from ..core.broker import Keys
from ..core.bucket import Bucket, Grant, OwnShare
from ..core.pipeline import Stage
from ..core.rate import OFF, Rate

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds for a stage: no rate, and no number over all processes, if these are ``None``."""

    rate: Rate | None = None
    max_running: int | None = None

    @classmethod
    def in_force(cls, stage: Stage, *, rate: str | None, burst: int | None, max_running: int | None) -> "Limits":
        """The limits that people have set, and the stage's own for those that are ``None``; the rate ``off`` is none.

        Raises ``DeclarationError`` if a rate is none that can be.
        """
        if rate == OFF:
            in_time = None
        elif rate is not None:
            in_time = Rate.parse(rate, burst)
        else:
            in_time = stage.rate and Rate(stage.rate.per_second, burst or stage.rate.burst)
        return cls(in_time, max_running or stage.max_running)

    def __str__(self) -> str:
        said = [] if self.rate is None else [f"{self.rate}, {self.rate.burst} at once"]
        if self.max_running is not None:
            said.append(f"{self.max_running} running")
        return ", ".join(said) or "none"


class Throttle:
    """Grants attempts of one stage to one of its processes.

    The count is kept in Redis, by the clock of Redis, in one script. A Redis that is full refuses it, while there may
    still be entries to be drained: each process then keeps to its share of the rate by itself.
    """

    def __init__(self, stage: Stage, *, consumer: str, keys: Keys, client: Redis) -> None:
        self.limits = Limits(stage.rate, stage.max_running)
        self.processes = 1
        """How many processes share the rate, as far as is known: only for when Redis is full."""
        self._name = stage.full_name
        self._consumer = consumer
        self._bucket = Bucket(client, keys.limit(stage.pipeline, stage.name), keys.running(stage.pipeline, stage.name))
        self._alive = keys.alive(keys.shard_of(stage.pipeline, stage.name), "")
        self._own = OwnShare()
        self._is_full = False

    @property
    def is_needed(self) -> bool:
        """True if something limits the stage."""
        return self.limits != Limits()

    async def take(self, want: int, *, held: int) -> tuple[int, float]:
        """How many of ``want`` attempts may begin, and if none: in how many seconds to ask again.

        ``held`` is how many entries this process has already. What is granted and not used is to be given back. Raises
        what redis-py raises.
        """
        if not self.is_needed:
            return want, 0.0
        try:
            grant = await self._ask(want, held)
        except OutOfMemoryError:
            if not self._is_full:
                log.warning("Redis is full: %s keeps to its share of the limits by itself", self._name)
            self._is_full = True
            return self._take_own(want, held)
        self._is_full = False
        return grant.granted, grant.wait

    async def give_back(self, unused: int, *, held: int) -> None:
        """``unused`` of what was granted was not needed; this process holds ``held`` entries now.

        If Redis is away they are lost, and the stage is a little slower than it might be.
        """
        if self.is_needed and not self._is_full:
            with contextlib.suppress(RedisError, OSError):
                await self._ask(-unused, held)

    async def _ask(self, want: int, held: int) -> Grant:
        running = (self.limits.max_running or 0, self._consumer, held, self._alive)
        return await self._bucket.take(want, self.limits.rate, running=running)

    def _take_own(self, want: int, held: int) -> tuple[int, float]:
        if self.limits.max_running is not None:
            want = min(want, max(0, self.limits.max_running // self.processes - held))
        if self.limits.rate is None or want == 0:
            return want, 0.05
        grant = self._own.take(want, self.limits.rate, self.processes)
        return grant.granted, grant.wait
