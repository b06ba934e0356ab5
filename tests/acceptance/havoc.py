"""Faults, one after the other, for a deployment that must not mind."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from postroad.core.servers import Valkey
from tests.acceptance.deployment import Deployment

T = TypeVar("T")


class Bag(Generic[T]):
    """Draws ``kinds`` in random order, each of them once before any comes again."""

    def __init__(self, kinds: Sequence[T], draw: random.Random) -> None:
        self._kinds = list(kinds)
        self._draw = draw
        self._left: list[T] = []

    def next(self) -> T:
        """The next kind."""
        if not self._left:
            self._left = self._kinds.copy()
            self._draw.shuffle(self._left)
        return self._left.pop()

    def next_if(self, is_wanted: Callable[[T], bool]) -> T | None:
        """The next kind that is wanted, of those that are still to come before any comes again; or none."""
        for place in reversed(range(len(self._left))):
            if is_wanted(self._left[place]):
                return self._left.pop(place)
        return None


def wipe(deployment: Deployment) -> None:
    """Make Redis forget everything."""
    with deployment.redis() as client:
        client.flushall()


def crash(valkey: Valkey) -> None:
    """Kill Redis with SIGKILL, and start it on what it has written."""
    valkey.kill()
    valkey.start()


class Havoc:
    """Strikes a deployment: kills its relay, its workers and its Redis with SIGKILL, and wipes Redis.

    ``valkey`` is the server to restart; without it Redis is only wiped. What was killed comes back by
    ``Deployment.revive``.
    """

    def __init__(
        self, deployment: Deployment, *, workers: Sequence[str], seed: int, valkey: Valkey | None = None
    ) -> None:
        draw = random.Random(seed)
        kinds: list[tuple[str, Callable[[], None]]] = [
            ("kill -9 of the relay", lambda: deployment.processes["relay"].kill()),
            ("kill -9 of a worker", lambda: deployment.processes[draw.choice(workers)].kill()),
            ("FLUSHALL", lambda: wipe(deployment)),
        ]
        if valkey is not None:
            kinds.append(("kill -9 of Redis", lambda: crash(valkey)))
        self._bag = Bag(kinds, draw)
        self.struck: Counter[str] = Counter()
        """How often each fault has struck, by its name."""

    def strike(self) -> str:
        """Do the next harm; its name. Every kind comes once before any comes again, in random order."""
        name, harm = self._bag.next()
        harm()
        self.struck[name] += 1
        return name
