"""Tell the other workers that this process lives.

From a thread of its own, so that a handler that blocks the event loop does not make the process look dead. What it
cannot tell from a hung handler: that is what the handler's timeout is for.
"""

import logging
import threading
from collections.abc import Iterable
from datetime import timedelta

from redis import Redis
from redis.exceptions import RedisError

log = logging.getLogger(__name__)


class Heartbeat:
    """Sets ``keys`` with ``lease`` as their time to live, three times a lease, until it is stopped."""

    def __init__(self, client: Redis, keys: Iterable[str], lease: timedelta) -> None:
        self._client = client
        self._keys = list(keys)
        self._lease = lease
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Beat once, so that nobody takes us for dead from the start, then go on in the thread."""
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Stop, and say so: what is left under our name may be taken at once. Safe to call twice."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        try:
            for key in self._keys:
                self._client.delete(key)
        except RedisError as error:
            log.info("Redis is away at our end: %s", error)
        self._client.close()

    def _run(self) -> None:
        while not self._stop.wait(self._lease.total_seconds() / 3):
            self._beat()

    def _beat(self) -> None:
        try:
            for key in self._keys:
                self._client.set(key, 1, px=self._lease)
        except Exception as error:
            # Whatever it is: a thread that ended here would make us look dead for good.
            log.warning("heartbeat missed: %s", error)
