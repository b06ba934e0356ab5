"""Faults, one after the other, for a deployment that must not mind."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

from postroad.core.servers import Valkey
from tests.acceptance.deployment import Deployment


class Havoc:
    """Strikes a deployment: kills its relay, its workers and its Redis with SIGKILL, and wipes Redis.

    ``valkey`` is the server to restart; without it Redis is only wiped. What was killed comes back by
    ``Deployment.revive``.
    """

    def __init__(
        self, deployment: Deployment, *, workers: Sequence[str], seed: int, valkey: Valkey | None = None
    ) -> None:
        self._deployment = deployment
        self._workers = workers
        self._draw = random.Random(seed)
        self._valkey = valkey
        self._waiting: list[Callable[[], str]] = []
        self.struck: Counter[str] = Counter()
        """How often each fault has struck, by its name."""

    def strike(self) -> str:
        """Do the next harm; its name. Every kind comes once before any comes again, in random order."""
        if not self._waiting:
            self._waiting = [self._kill_relay, self._kill_worker, self._wipe]
            if self._valkey is not None:
                self._waiting.append(self._restart)
            self._draw.shuffle(self._waiting)
        name = self._waiting.pop()()
        self.struck[name] += 1
        return name

    def _kill_relay(self) -> str:
        self._deployment.processes["relay"].kill()
        return "kill -9 of the relay"

    def _kill_worker(self) -> str:
        self._deployment.processes[self._draw.choice(self._workers)].kill()
        return "kill -9 of a worker"

    def _wipe(self) -> str:
        with self._deployment.redis() as client:
            client.flushall()
        return "FLUSHALL"

    def _restart(self) -> str:
        assert self._valkey is not None
        self._valkey.kill()
        self._valkey.start()
        return "kill -9 of Redis"
