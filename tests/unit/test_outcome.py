"""What a handler may raise."""

from datetime import timedelta

import pytest

from postroad import Reject, Retry, Snooze


def test_a_retry_may_leave_the_delay_to_the_stage() -> None:
    assert Retry().after is None
    assert (Retry("busy").reason, str(Retry("busy"))) == ("busy", "busy")


@pytest.mark.parametrize("delay", [90, 90.0, timedelta(minutes=1.5)])
def test_a_delay_is_seconds_or_a_timedelta(delay: float | timedelta) -> None:
    assert Retry(after=delay).after == Snooze(delay).after == timedelta(seconds=90)


def test_a_delay_may_be_nothing_or_a_year() -> None:
    assert Retry(after=0).after == Snooze(0).after == timedelta()
    assert Snooze(timedelta(days=365)).after == timedelta(days=365)


@pytest.mark.parametrize("delay", [-1, -0.001, timedelta(days=365, seconds=1), float("nan"), float("inf"), 1e20])
def test_a_delay_that_cannot_be_meant_is_refused(delay: float | timedelta) -> None:
    with pytest.raises(ValueError, match=r"Retry\(after=…\) must lie between 0 and 365 days, not"):
        Retry(after=delay)
    with pytest.raises(ValueError, match=r"Snooze\(…\) must lie between 0 and 365 days, not"):
        Snooze(delay)


def test_a_rejection_has_a_reason() -> None:
    assert (Reject("no quota").reason, str(Reject("no quota"))) == ("no quota", "no quota")
