"""What one run of a handler can come to.

Returning is ``Completed``. The other three are exceptions, since a handler raises them from any depth; the
runner turns them into values, and any other exception into a ``Retry``.
"""

import hashlib
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Completed:
    """The handler returned; ``result`` is its return value as JSON text that Postgres can keep."""

    result: str


class Retry(Exception):
    """Try this stage again later; the attempt counts.

    ``after`` replaces the usual exponential delay. Past the stage's limit it becomes a dead letter. Raised by a
    handler, or made by the runner of any other exception and of a timeout.
    """

    def __init__(self, reason: str = "", *, after: timedelta | float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = _delay("Retry(after=…)", after)


class Snooze(Exception):
    """Not yet: run this stage again after ``delay`` (a ``timedelta`` or seconds); no attempt is counted."""

    def __init__(self, delay: timedelta | float, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = _delay("Snooze(…)", delay) or timedelta()


class Reject(Exception):
    """Never: this stage is a dead letter at once, whatever attempts were left."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Expired(Reject):
    """The task's deadline leaves no time to start: a dead letter at once, and no attempt. Made by the worker alone."""


Outcome = Completed | Retry | Snooze | Reject


@dataclass(frozen=True, slots=True)
class Handed:
    """The work was handed to a service, which will report how it ended, within ``within``.

    ``lease`` stands for the token by which it does. Only postroad itself makes one.
    """

    lease: bytes
    within: timedelta


def lease_of(token: str) -> bytes:
    """What Postgres keeps of a token, its SHA-256: who can read it there cannot report by it."""
    return hashlib.sha256(token.encode()).digest()


LONGEST_DELAY = timedelta(days=365)
"""Further ahead than this a delay is a mistake, not a plan."""


def _delay(what: str, value: timedelta | float | None) -> timedelta | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not 0 <= seconds <= LONGEST_DELAY.total_seconds():
        raise ValueError(f"{what} must lie between 0 and {LONGEST_DELAY.days} days, not {value}")
    return timedelta(seconds=seconds)
