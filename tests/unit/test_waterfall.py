"""The journey of a task as bars, made of steps as the view task_journey has them."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from postroad.dashboard.waterfall import Waterfall, waterfall

START = datetime(2026, 12, 1, 10, tzinfo=UTC)
AFTER = {"pack": [], "ride": ["pack"], "rest": ["pack"], "arrive": ["ride", "rest"]}


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@dataclass
class Step:
    event: str
    occurred_at: datetime
    stage: str | None = None
    outcome: str | None = None
    attempt: int | None = None
    worker: str | None = "host:1:00000000"
    ready_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    next_at: datetime | None = None
    reason: str | None = None
    error: str | None = None
    data: Any = None


def attempt(stage: str, outcome: str, ready: float, start: float, end: float, **more: Any) -> Step:
    event = {"done": "StageCompleted", "failed": "StageFailed", "dead": "StageDead", "waiting": "StageHanded"}[outcome]
    times = {"ready_at": at(ready), "started_at": at(start), "ended_at": at(end)}
    return Step(f"{event}:{stage}", at(end), stage, outcome, **({"attempt": 1} | times | more))


CREATED = Step("TaskCreated", START)


def told(picture: Waterfall | None) -> list[tuple[str | None, str, list[tuple[str, float, float]]]]:
    """The lines: the stage, what came of it, and each bar in seconds from the start."""
    assert picture is not None
    return [
        (
            row.stage,
            row.outcome,
            [(bar.kind, (bar.begin - START).total_seconds(), (bar.end - START).total_seconds()) for bar in row.bars],
        )
        for row in picture.rows
    ]


def test_an_attempt_waits_and_runs() -> None:
    steps = [CREATED, attempt("pack", "done", 0, 1, 3)]

    picture = waterfall(steps, {"pack": []}, {}, now=at(9), is_open=False)

    assert told(picture) == [(None, "accepted", []), ("pack", "done", [("wait", 0, 1), ("run", 1, 3)])]
    assert picture is not None
    assert (picture.begin, picture.end) == (START, at(3))
    assert picture.place(picture.rows[1].bars[1]) == (1 / 3, 2 / 3)


def test_after_a_failure_it_is_some_time_until_the_next_attempt() -> None:
    steps = [
        CREATED,
        attempt("pack", "failed", 0, 0, 1, next_at=at(5), reason="no luck"),
        attempt("pack", "done", 5, 6, 7, attempt=2),
    ]

    picture = waterfall(steps, {"pack": []}, {}, now=at(9), is_open=False)

    assert told(picture)[1:] == [
        ("pack", "failed", [("run", 0, 1), ("retry", 1, 5)]),
        ("pack", "done", [("wait", 5, 6), ("run", 6, 7)]),
    ]
    assert picture is not None
    assert [(row.attempt, row.note) for row in picture.rows[1:]] == [(1, "no luck"), (2, None)]


def test_what_is_yet_to_come_does_not_squeeze_what_has_been() -> None:
    steps = [CREATED, attempt("pack", "failed", 0, 0, 1, next_at=at(3600))]

    picture = waterfall(steps, {"pack": []}, {}, now=at(9), is_open=True)

    assert picture is not None
    assert picture.end == at(9)


def test_a_stage_waits_from_when_the_last_of_those_before_it_was_done() -> None:
    steps = [
        CREATED, attempt("pack", "done", 0, 0, 1), attempt("ride", "done", 1, 1, 2), attempt("rest", "done", 1, 1, 4)
    ]  # fmt: skip

    picture = waterfall(steps, AFTER, {}, now=at(6), is_open=True)

    assert told(picture)[-1] == ("arrive", "waits", [("wait", 4, 6)])


def test_what_runs_now_is_a_bar_to_now() -> None:
    picture = waterfall([CREATED], AFTER, {"pack": (1, at(2))}, now=at(6), is_open=True)

    assert told(picture)[1:] == [("pack", "running", [("wait", 0, 2), ("run", 2, 6)])]


def test_a_clock_that_is_ahead_makes_no_bar_that_ends_before_it_begins() -> None:
    picture = waterfall([CREATED], AFTER, {"pack": (1, at(7))}, now=at(6), is_open=True)

    assert told(picture)[1:] == [("pack", "running", [("wait", 0, 6), ("run", 6, 6)])]


def test_what_is_with_a_service_is_neither_a_wait_nor_a_run() -> None:
    handed = [CREATED, attempt("pack", "waiting", 0, 0, 1, next_at=at(3600))]

    waits = waterfall(handed, {"pack": []}, {}, now=at(5), is_open=True)
    done = waterfall([*handed, attempt("pack", "done", 4, 4, 4.5)], {"pack": []}, {}, now=at(5), is_open=False)

    assert told(waits)[-1] == ("pack", "with a service", [("handed", 1, 5)])
    assert told(done)[-1] == ("pack", "done", [("handed", 1, 4), ("run", 4, 4.5)])


def test_after_a_requeue_the_stage_waits_anew() -> None:
    steps = [
        CREATED,
        attempt("pack", "dead", 0, 0, 1, reason="no road"),
        Step("TaskFailed", at(1)),
        Step("StageRequeued:pack", at(10), "pack", data={"by": "ada", "reason": "the road is open"}),
    ]

    picture = waterfall(steps, AFTER, {}, now=at(12), is_open=True)

    assert told(picture)[2:] == [
        (None, "failed", []), ("pack", "requeued", []), ("pack", "waits", [("wait", 10, 12)])
    ]  # fmt: skip
    assert picture is not None
    assert picture.rows[3].note == "by ada: the road is open"


def test_a_failed_task_has_nothing_that_waits() -> None:
    picture = waterfall([CREATED, attempt("pack", "dead", 0, 0, 1)], AFTER, {}, now=at(100), is_open=False)

    assert picture is not None
    assert picture.end == at(1)


def test_steps_from_before_the_times_were_recorded_are_points() -> None:
    picture = waterfall(
        [CREATED, Step("StageCompleted:pack", at(1), "pack", "done", 1)], AFTER, {}, now=at(2), is_open=False
    )

    assert told(picture)[1] == ("pack", "done", [])
    assert picture is not None
    assert picture.point(at(1)) == 1


def test_without_steps_there_is_no_picture() -> None:
    assert waterfall([], AFTER, {}, now=at(0), is_open=False) is None
