"""What an outcome makes of a stage run: the decision, before anything is written."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from postroad import Pipeline, Reject, Retry, Snooze, Task
from postroad.core.outcome import Completed, Expired, Outcome
from postroad.core.pipeline import Stage
from postroad.stages.ledger import Attempt, Kind, Verdict, Work

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def stage_with(retries: int) -> Stage:
    road = Pipeline("road")

    @road.stage(retries=retries)
    async def ride(task: Task) -> None: ...

    return road.graph()["ride"]


def work_after(attempts: int) -> Work:
    return Work(
        task_id=UUID("01990000-0000-7000-8000-000000000001"),
        version=attempts + 1,
        payload={},
        labels={},
        created_at=NOW,
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        is_open=True,
        is_ready=True,
        attempts=attempts,
        wait=None,
        worker=None,
        started_at=None,
        results=None,
    )


def verdict(outcome: Outcome, *, attempts: int = 0, retries: int = 5, error: str | None = None) -> Verdict:
    return Attempt(stage_with(retries), work_after(attempts), outcome, NOW, error).verdict()


def fingerprint(reason: str) -> str:
    return verdict(Reject(reason)).fingerprint


@pytest.mark.parametrize(
    ("asked", "due", "waited"),
    [(-3, None, 3.0), (-3, -1, 1.0), (-1, -3, 1.0), (1, None, 0.0), (None, None, None), (None, -2, None)],
    ids=["first", "retry", "requeued", "clocks differ", "nobody knows", "reloaded"],
)
def test_what_it_waited_counts_from_when_it_was_asked_for_and_due(
    asked: int | None, due: int | None, waited: float | None
) -> None:
    asked_at, due_at = (None if one is None else NOW + timedelta(seconds=one) for one in (asked, due))
    work = replace(work_after(0), asked_at=asked_at, due=due_at)

    made = Attempt(stage_with(5), work, Completed("1"), NOW, ended_at=NOW + timedelta(seconds=2))

    assert (made.waited, made.ran) == (waited, 2.0)


def test_a_result_makes_it_done_with_this_attempt() -> None:
    assert verdict(Completed('{"a":1}'), attempts=2) == Verdict(Kind.DONE, 3, result='{"a":1}')


@pytest.mark.parametrize("attempts", [0, 7])
def test_a_snooze_counts_no_attempt_and_never_dies(attempts: int) -> None:
    came_to = verdict(Snooze(timedelta(hours=1), "the inn is closed"), attempts=attempts, retries=0)

    assert came_to == Verdict(Kind.SNOOZED, attempts, reason="the inn is closed", delay=timedelta(hours=1))


def test_a_snooze_needs_no_reason_and_no_time() -> None:
    assert verdict(Snooze(0)) == Verdict(Kind.SNOOZED, 0, delay=timedelta())


def test_a_reject_is_dead_whatever_attempts_are_left() -> None:
    came_to = verdict(Reject("no such town"), retries=100, error="Traceback …")

    assert came_to == Verdict(Kind.DEAD, 1, reason="no such town", error="Traceback …")


def test_a_retry_waits_as_long_as_it_says() -> None:
    came_to = verdict(Retry("later", after=90), attempts=1, error="Traceback …")

    assert came_to == Verdict(Kind.FAILED, 2, reason="later", error="Traceback …", delay=timedelta(seconds=90))


@pytest.mark.parametrize(("attempts", "seconds"), [(0, 1), (1, 2), (2, 4), (5, 32), (30, 600)])
def test_a_retry_that_says_nothing_waits_longer_every_time(attempts: int, seconds: float) -> None:
    delays = [verdict(Retry("again"), attempts=attempts, retries=100).delay for _ in range(200)]

    in_seconds = [delay.total_seconds() for delay in delays if delay is not None]
    assert len(in_seconds) == 200
    assert seconds * 0.75 <= min(in_seconds) < seconds * 0.85
    assert seconds * 1.15 < max(in_seconds) <= seconds * 1.25


def test_retries_are_the_attempts_after_the_first() -> None:
    kinds = [verdict(Retry("again"), attempts=attempts, retries=2).kind for attempts in range(4)]

    assert kinds == [Kind.FAILED, Kind.FAILED, Kind.DEAD, Kind.DEAD]


def test_without_retries_the_first_failure_is_the_last() -> None:
    came_to = verdict(Retry("broken", after=1), retries=0, error="Traceback …")

    assert came_to == Verdict(Kind.DEAD, 1, reason="broken", error="Traceback …")


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("  two\nlines  ", "two"),
        ("", "no reason given"),
        (" \n ", "no reason given"),
        ("a\x00b", "a\N{REPLACEMENT CHARACTER}b"),
        ("half \ud83d", "half ?"),
        ("x" * 5000, "x" * 1000),
    ],
)
def test_a_reason_is_one_line_that_postgres_keeps(reason: str, kept: str) -> None:
    assert verdict(Retry(reason)).reason == kept
    assert verdict(Retry(reason), retries=0).reason == kept
    assert verdict(Reject(reason)).reason == kept
    assert verdict(Snooze(1, reason)).reason == (kept if reason else None)


def due(seconds: float, outcome: Outcome) -> Verdict:
    """The verdict on an attempt, the second, on a task whose deadline is in so many seconds."""
    work = replace(work_after(1), deadline=NOW, time_left=timedelta(seconds=seconds))
    return Attempt(stage_with(5), work, outcome, NOW, "Traceback …").verdict()


def test_a_retry_that_would_come_after_the_deadline_is_a_dead_letter_now() -> None:
    assert due(100, Retry("full", after=90)).kind is Kind.FAILED
    assert due(100, Retry("full", after=110)) == Verdict(
        Kind.DEAD,
        2,
        reason="its deadline 2026-01-01T00:00:00Z comes before the next attempt (after: full)",
        error="Traceback …",
    )
    assert due(-1, Retry("full")).reason == "its deadline 2026-01-01T00:00:00Z has passed (after: full)"
    assert due(0.5, Retry("full")).kind is Kind.DEAD


def test_a_snooze_that_would_outlast_the_deadline_is_a_dead_letter_and_counts_no_attempt() -> None:
    assert due(100, Snooze(90)).kind is Kind.SNOOZED
    assert due(100, Snooze(110)) == Verdict(
        Kind.DEAD, 1, reason="its deadline 2026-01-01T00:00:00Z comes before the next attempt"
    )


def test_what_was_done_in_time_is_done_whenever_it_is_committed() -> None:
    assert due(-5, Completed("null")).kind is Kind.DONE


def test_what_was_not_started_for_its_deadline_counts_no_attempt_and_tells_the_last_failure() -> None:
    error = "Traceback …\n  line\nOSError: gone\n"
    work = replace(work_after(2), deadline=NOW, time_left=timedelta(seconds=-1), last_error=error)

    assert work.seconds_left() <= -1
    assert work.expired() == "its deadline 2026-01-01T00:00:00Z has passed (after: OSError: gone)"
    assert Attempt(stage_with(5), work, Expired("late"), NOW).verdict() == Verdict(
        Kind.DEAD, 2, reason="late", error=error
    )


def test_without_a_deadline_time_does_not_end() -> None:
    assert work_after(0).seconds_left() == float("inf")


def test_alike_failures_have_one_fingerprint() -> None:
    assert fingerprint("host n17 has 3 of 40 cores") == fingerprint("host n4 has 12 of 1024 cores")
    assert fingerprint("no task 01990000-0000-7000-8000-000000000001") == fingerprint(
        "no task 0199ABCD-12EF-7000-8000-00000000FFFF"
    )
    assert fingerprint("at 0x7f3a12") == fingerprint("at 0xDEADBEEF")


def test_different_failures_have_different_fingerprints() -> None:
    told = {fingerprint(reason) for reason in ("host n17 is full", "host n17 is away", "port 17 is away", "")}

    assert len(told) == 4


def test_a_fingerprint_is_short_and_hexadecimal() -> None:
    assert len(fingerprint("\ud800 whatever")) == 12
    assert int(fingerprint("whatever"), 16) >= 0


def test_work_tells_a_handler_what_it_needs() -> None:
    task = work_after(2).task(stage_with(5))

    assert (task.pipeline, task.stage, task.attempt, task.results) == ("road", "ride", 3, {})
    assert task.idempotency_key == "01990000-0000-7000-8000-000000000001/ride"
