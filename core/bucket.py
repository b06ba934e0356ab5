"""What a rate grants, over all processes: counted in Redis, by the clock of Redis, in one script.

Where Redis cannot be asked, ``OwnShare`` grants by the clock of one process.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from redis.asyncio import Redis

from .broker import Scripts
from .rate import Rate


@dataclass(frozen=True, slots=True)
class Grant:
    """``granted`` of what was wanted; if that is none, ``wait`` is in how many seconds to ask again.

    ``left`` is how many more the rate would have granted at once.
    """

    granted: int
    wait: float = 0.0
    left: int = 0


class Bucket:
    """One rate that processes share. ``keys`` are those of ``take.lua``; the second is only needed with a limit."""

    def __init__(self, client: Redis, *keys: str) -> None:
        self._scripts = Scripts(__package__ or "", client)
        self._keys = keys

    async def take(self, want: int, rate: Rate | None, *, running: Sequence[str | int] = (0, "", 0, "")) -> Grant:
        """Take up to ``want``, or give back if that is less than 0. Raises what redis-py raises.

        ``running`` are the arguments of ``take.lua`` from the fourth on: by default no limit of what runs at once.
        """
        arguments: list[str | int] = [repr(rate.per_second) if rate else 0, rate.burst if rate else 0, want, *running]
        granted, wait, left = await self._scripts.run("take", self._keys, arguments)
        return Grant(int(granted), int(wait) / 1000, int(left))


class OwnShare:
    """The part of a rate that falls to one of several processes, by its own clock."""

    def __init__(self) -> None:
        self._next = 0.0

    def take(self, want: int, rate: Rate, processes: int = 1) -> Grant:
        """Take up to ``want`` of a ``processes``-th of ``rate``."""
        step = processes / rate.per_second
        room = max(1.0, rate.burst / processes) * step
        now = time.monotonic()
        self._next = min(max(self._next, now), now + room)
        left = int((now + room - self._next) / step + 1e-6)
        granted = min(want, left)
        if granted == 0:
            return Grant(0, self._next + step - now - room)
        self._next += granted * step
        return Grant(granted, left=left - granted)
