"""Cron lines with a time zone: which moments they name, on the nights when clocks change too.

As Debian's cron has it (cronsim does the arithmetic). A line that names its minutes and hours runs once a day even on
those nights: what would fall into the hour that is skipped comes right after it, and of an hour that comes twice the
first counts. A line whose minutes or hours begin with ``*`` goes by the time that passes: its ticks in a skipped hour
are none, in a doubled hour twice as many.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from .errors import DeclarationError

_LOOK_BACK = (timedelta(hours=1), timedelta(days=1), timedelta(days=32), timedelta(days=366))
"""How far back the latest tick is looked for, first near: a line for every minute has half a million in a year."""


class Cron:
    """The ticks of ``line``, five fields, in the time zone ``timezone``. Raises ``DeclarationError``."""

    def __init__(self, line: str, timezone: str) -> None:
        self._line = line
        self._zone = _zone(timezone)
        if len(line.split()) != 5:
            raise DeclarationError(
                f"{line!r} is no cron line: it has five fields (minute, hour, day of month, month, day of week),"
                " as 30 2 * * 1-5"
            )
        try:
            self.next(datetime.now(UTC))
        except (CronSimError, AssertionError, ValueError) as error:
            # A mistake in some combinations trips an assertion of cronsim's.
            raise DeclarationError(f"{line!r} is no cron line: {str(error) or 'bad field'}") from None

    def next(self, after: datetime) -> datetime:
        """The first tick later than ``after``, in UTC."""
        return next(self._ticks(after))

    def latest(self, first: datetime, now: datetime) -> datetime:
        """The last tick not later than ``now``; ``first``, which is one, if none came after it."""
        for span in _LOOK_BACK:
            since = max(now - span, first)
            latest = None
            for tick in self._ticks(since):
                if tick > now:
                    break
                latest = tick
            if latest is not None:
                return latest
            if since == first:
                return first
        return self._latest_of(first, now)

    def _latest_of(self, first: datetime, now: datetime) -> datetime:
        latest = first
        for tick in self._ticks(first):
            if tick > now:
                return latest
            latest = tick
        return latest

    def _ticks(self, after: datetime) -> Iterator[datetime]:
        previous = after
        for tick in self._sim(after):
            # It goes by the clock on the wall: seen from the second of two equal hours it names moments of the first,
            # and several in a skipped hour fall on one.
            moment = tick.astimezone(UTC)
            if moment > previous:
                yield moment
                previous = moment
        raise DeclarationError(f"{self._line!r} names no moment within 50 years")

    def _sim(self, after: datetime) -> CronSim:
        return CronSim(self._line, after.astimezone(self._zone))


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise DeclarationError(f"there is no time zone {name!r}; names are as Europe/Berlin, or UTC") from None
