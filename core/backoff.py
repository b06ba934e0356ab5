"""How long a failed stage rests before it is tried again."""

import random
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
    middle = min(FIRST * 2**doublings, LONGEST)
    spread = random.random() if draw is None else draw
    return middle * (1 - JITTER + 2 * JITTER * spread)
