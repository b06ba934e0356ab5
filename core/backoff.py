"""How long to wait before something that failed is tried again."""

import random
import time
from datetime import timedelta

FIRST = timedelta(seconds=1)
"""The delay before the second attempt."""

LONGEST = timedelta(minutes=10)
"""No delay is longer: a stage whose service came back should not sleep through the day."""

JITTER = 0.25
"""Delays are spread by this share in both directions, so that what failed together is not retried together."""


def backoff(attempts: int, *, draw: float | None = None) -> timedelta:
    """The delay after ``attempts`` failed attempts (1 or more): 1 s, 2 s, 4 s, 8 s … 10 min, each ± 25 %.

    ``draw`` in [0, 1) replaces the random number, for tests: 0.5 gives the middle of the range.

    >>> backoff(1, draw=0.5), backoff(4, draw=0.5)
    (datetime.timedelta(seconds=1), datetime.timedelta(seconds=8))
    """
    doublings = min(max(attempts, 1) - 1, 32)
    middle = min(FIRST * float(2**doublings), LONGEST)
    spread = random.random() if draw is None else draw
    return middle * (1 - JITTER + 2 * JITTER * spread)


class Pause:
    """Growing pauses between tries while a server is away: 50 ms, doubling to 5 s, each halved by up to a half.

    Also says when another line in the log is due: at once, then every 10 s.
    """

    _SHORTEST, _LONGEST, _SILENCE = 0.05, 5.0, 10.0

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """The server is back."""
        self._seconds = self._SHORTEST
        self._spoke_at = float("-inf")

    def next(self) -> float:
        """The seconds to pause now."""
        seconds, self._seconds = self._seconds, min(self._seconds * 2, self._LONGEST)
        return seconds * random.uniform(0.5, 1)

    def is_worth_a_line(self) -> bool:
        """True if the log has been silent about this outage for long enough."""
        now = time.monotonic()
        if now - self._spoke_at < self._SILENCE:
            return False
        self._spoke_at = now
        return True
