"""How long to wait before another try."""

import random
import time
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.core.backoff import JITTER, LONGEST, Pause, backoff


@pytest.mark.parametrize(
    ("attempts", "seconds"),
    [(1, 1), (2, 2), (3, 4), (4, 8), (8, 128), (10, 512), (11, 600), (33, 600), (10_000, 600), (0, 1), (-5, 1)],
)
def test_the_delay_doubles_up_to_ten_minutes(attempts: int, seconds: float) -> None:
    assert backoff(attempts, draw=0.5) == timedelta(seconds=seconds)


@pytest.mark.parametrize(("draw", "seconds"), [(0.0, 3.0), (0.25, 3.5), (0.75, 4.5)])
def test_the_delay_is_spread_by_a_quarter_in_both_directions(draw: float, seconds: float) -> None:
    assert backoff(3, draw=draw) == timedelta(seconds=seconds)


@settings(deadline=None)
@given(st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_no_delay_leaves_its_range(attempts: int, draw: float) -> None:
    delay = backoff(attempts, draw=draw)

    assert timedelta(seconds=1) * (1 - JITTER) <= delay <= LONGEST * (1 + JITTER)
    assert backoff(attempts, draw=0) <= delay <= backoff(attempts, draw=1)


def test_what_failed_together_is_not_retried_together() -> None:
    assert len({backoff(5) for _ in range(50)}) > 40


def test_pauses_double_from_50_ms_to_5_s_and_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    pause = Pause()

    assert [pause.next() for _ in range(9)] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])

    pause.reset()
    assert pause.next() == pytest.approx(0.05)


def test_pauses_are_halved_at_most() -> None:
    first = [Pause().next() for _ in range(200)]

    assert 0.025 <= min(first) < 0.035
    assert 0.04 < max(first) <= 0.05


def test_a_pause_is_worth_a_line_at_once_and_then_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    pause = Pause()

    assert pause.is_worth_a_line()
    clock += 9.9
    assert not pause.is_worth_a_line()
    clock += 0.2
    assert pause.is_worth_a_line()
    assert not pause.is_worth_a_line()
    pause.reset()
    assert pause.is_worth_a_line()
