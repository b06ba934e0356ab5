"""Cron lines in time zones: the moments that they name, above all when clocks change."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from postroad.core.cron import Cron
from postroad.core.errors import DeclarationError


def ticks(line: str, zone: str, after: str, count: int) -> list[str]:
    """The next ticks after a local time, as that zone's clocks show them, with the offset."""
    cron, moment = Cron(line, zone), datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(zone))
    told = []
    for _ in range(count):
        moment = cron.next(moment)
        assert moment.tzinfo is UTC
        told.append(moment.astimezone(ZoneInfo(zone)).strftime("%d %H:%M%z"))
    return told


@pytest.mark.parametrize(
    ("line", "zone", "after", "then"),
    [
        # The hour from 2 is skipped: what names its time comes right after it, once.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["29 03:00+0200", "30 02:30+0200"]),
        ("0,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["29 03:00+0200", "30 02:00+0200"]),
        ("30 2 * * *", "America/New_York", "2026-03-07T12:00", ["08 03:00-0400", "09 02:30-0400"]),
        ("0 3 * * *", "Europe/Berlin", "2026-03-28T12:00", ["29 03:00+0200", "30 03:00+0200"]),
        # What goes by the time that passes has no tick in it.
        ("30 * * * *", "Europe/Berlin", "2026-03-29T01:00", ["29 01:30+0100", "29 03:30+0200"]),
        ("*/20 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["30 02:00+0200", "30 02:20+0200"]),
        ("0 * * * *", "America/New_York", "2026-03-08T00:30", ["08 01:00-0500", "08 03:00-0400"]),
        # The hour comes twice: what names its time comes in the first one.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["25 02:30+0200", "26 02:30+0100"]),
        ("30 1 * * *", "America/New_York", "2026-10-31T12:00", ["01 01:30-0400", "02 01:30-0500"]),
        # What goes by the time that passes comes in both.
        ("30 * * * *", "Europe/Berlin", "2026-10-25T02:00", ["25 02:30+0200", "25 02:30+0100", "25 03:30+0100"]),
        ("*/30 1 * * *", "America/New_York", "2026-11-01T01:00", ["01 01:30-0400", "01 01:00-0500", "01 01:30-0500"]),
    ],
)
def test_on_nights_when_clocks_change(line: str, zone: str, after: str, then: list[str]) -> None:
    assert ticks(line, zone, after, len(then)) == then


def test_the_second_of_two_equal_hours_leads_to_no_tick_of_the_first() -> None:
    second = datetime(2026, 10, 25, 2, 15, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))

    assert Cron("30 2 * * *", "Europe/Berlin").next(second) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    "line", ["* * * * *", "30 2 * * *", "0,30 2 * * *", "*/30 2 * * *", "15 */2 * * *", "0 0 1 * *"]
)
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"])
def test_ticks_only_go_forth_and_the_latest_is_the_last_before_the_next(line: str, zone: str) -> None:
    cron = Cron(line, zone)
    for start in ("2026-03-07T20:00", "2026-03-28T20:00", "2026-04-04T12:00", "2026-10-24T20:00", "2026-10-31T20:00"):
        first = cron.next(datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone)))
        tick = first
        for _ in range(40):
            after = cron.next(tick)
            assert after > tick
            assert cron.next(after - timedelta(seconds=1)) == after
            assert cron.latest(first, after - timedelta(seconds=1)) == tick
            assert cron.latest(first, after) == after
            tick = after


@pytest.mark.parametrize(
    ("line", "first", "now", "latest"),
    [
        ("* * * * *", "2026-01-01T00:00", "2026-12-01T10:00:30", "2026-12-01T10:00"),
        ("0 0 1 * *", "2026-01-01T00:00", "2026-12-05T10:00", "2026-12-01T00:00"),
        ("0 0 29 2 *", "2024-02-29T00:00", "2035-01-01T00:00", "2032-02-29T00:00"),
        ("0 0 29 2 *", "2024-02-29T00:00", "2024-03-01T00:00", "2024-02-29T00:00"),
        ("0 0 1 1 *", "2026-01-01T00:00", "2026-01-01T00:00", "2026-01-01T00:00"),
    ],
)
def test_of_missed_ticks_the_latest_is_found_however_long_ago(line: str, first: str, now: str, latest: str) -> None:
    moments = [datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (first, now, latest)]

    assert Cron(line, "UTC").latest(moments[0], moments[1]) == moments[2]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "* * * *",
        "* * * * * *",
        "@daily",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "0 0 30 2 *",
        "0 0 5-1 * *",
        "*/0 * * * *",
        "* * * * L",
        "* * * * 1#2/3",
        "nonsense every day of week",
        "-1 * * * *",
    ],
)
def test_what_is_no_line_is_told_so(line: str) -> None:
    with pytest.raises(DeclarationError, match=r"is no cron line: "):
        Cron(line, "UTC")


@pytest.mark.parametrize("zone", ["", "Mars/Phobos", "Europe", "../etc/passwd", "/etc/localtime", "CET\0"])
def test_what_is_no_time_zone_is_told_so(zone: str) -> None:
    with pytest.raises(DeclarationError, match="there is no time zone"):
        Cron("* * * * *", zone)
