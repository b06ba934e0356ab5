"""Moments as text."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from postroad.core.moment import parse_rfc3339, rfc3339

TEN = datetime(2026, 12, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "2026-12-01T10:00:00Z",
        "2026-12-01t10:00:00z",
        "2026-12-01 10:00:00+00:00",
        "2026-12-01T11:00:00+01:00",
        "2026-12-01T04:30:00.000000000-05:30",
        "2026-12-02T07:46:00+21:46",
    ],
)
def test_a_moment_with_its_offset_is_understood(text: str) -> None:
    moment = parse_rfc3339(text)

    assert (moment, moment.utcoffset()) == (TEN, timedelta())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "2026-12-01",
        "2026-12-01T10:00:00",
        "2026-12-01T10:00Z",
        "2026-12-01T10:00:00+0100",
        "20261201T100000Z",
        "2026-W49-2T10:00:00Z",
        "2026-13-01T10:00:00Z",
        "2026-02-30T10:00:00Z",
        "2026-12-01T25:00:00Z",
        "2026-12-01T10:00:60Z",
        "2026-12-01T10:00:00+25:00",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "2026-12-01T10:00:00Z ",
        "٢٠٢٦-12-01T10:00:00Z",
    ],
)
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_rfc3339(text)


def test_a_moment_is_written_in_utc_to_the_second() -> None:
    assert rfc3339(TEN.astimezone(timezone(timedelta(hours=2))) + timedelta(microseconds=7)) == "2026-12-01T10:00:00Z"
