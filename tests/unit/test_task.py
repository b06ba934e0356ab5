"""The states of a task, and its id."""

import os
import time
from datetime import UTC, datetime
from typing import Any
from uuid import RFC_4122, UUID

import pytest

from postroad import Status, Task
from postroad.core.task import TRANSITIONS, new_task_id, state_diagram


def test_the_transitions_are_these_and_no_others() -> None:
    assert {(str(before), str(after)) for before, _, after in TRANSITIONS} == {
        ("pending", "in_progress"),
        ("pending", "completed"),
        ("pending", "failed"),
        ("pending", "cancelled"),
        ("in_progress", "completed"),
        ("in_progress", "failed"),
        ("in_progress", "cancelled"),
        ("failed", "in_progress"),
        ("failed", "cancelled"),
        ("completed", "in_progress"),
    }


def test_a_status_and_a_cause_lead_to_one_status() -> None:
    assert len({(before, cause) for before, cause, _ in TRANSITIONS}) == len(TRANSITIONS)
    assert all(before is not after for before, _, after in TRANSITIONS)


def test_every_status_is_reached_from_pending() -> None:
    reached = {Status.PENDING}
    for _ in Status:
        reached |= {after for before, _, after in TRANSITIONS if before in reached}

    assert reached == set(Status)


def test_every_open_task_can_come_to_each_end() -> None:
    for status in (Status.PENDING, Status.IN_PROGRESS):
        assert {after for before, _, after in TRANSITIONS if before is status} >= {
            Status.COMPLETED,
            Status.FAILED,
            Status.CANCELLED,
        }


def test_only_cancelled_is_final_and_the_other_ends_can_be_taken_up_again() -> None:
    left = {before for before, _, _ in TRANSITIONS}

    assert set(Status) - left == {Status.CANCELLED}


@pytest.mark.parametrize("status", Status)
def test_a_task_that_goes_no_further_by_itself_is_terminal(status: Status) -> None:
    assert status.is_terminal is (status not in (Status.PENDING, Status.IN_PROGRESS))


def test_the_diagram_shows_the_transitions_the_entry_and_the_ends() -> None:
    lines = state_diagram().splitlines()

    assert lines[:2] == ["stateDiagram-v2", "    [*] --> pending: accepted"]
    assert lines[2:-3] == [f"    {before} --> {after}: {cause}" for before, cause, after in TRANSITIONS]
    assert lines[-3:] == ["    completed --> [*]", "    failed --> [*]", "    cancelled --> [*]"]


@pytest.fixture
def task() -> Task:
    return Task(
        task_id=UUID("01936f5e-0000-7000-8000-000000000001"),
        pipeline="road",
        stage="fork",
        payload={"a": 1},
        results={},
        attempt=1,
        labels={},
        created_at=datetime.now(UTC),
        traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-00",
    )


def test_the_idempotency_key_is_of_the_task_and_its_stage(task: Task) -> None:
    assert task.idempotency_key == "01936f5e-0000-7000-8000-000000000001/fork"


@pytest.mark.parametrize("name", ["stage", "attempt", "nonsense"])
def test_a_handler_cannot_change_its_task(task: Task, name: str) -> None:
    with pytest.raises((AttributeError, TypeError)):
        setattr(task, name, "other")


def test_ids_are_uuids_of_version_7() -> None:
    for _ in range(1000):
        task_id = new_task_id()
        assert (task_id.version, task_id.variant) == (7, RFC_4122)


@pytest.mark.parametrize("bits", [b"\x00" * 10, b"\xff" * 10])
def test_version_and_variant_hold_whatever_the_random_bits(bits: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda size: bits[:size])
    monkeypatch.setattr(time, "time_ns", lambda: 0x0123_4567_89AB * 1_000_000 + 999_999)

    task_id = new_task_id()

    assert (task_id.version, task_id.variant) == (7, RFC_4122)
    expected = "01234567-89ab-7000-8000-000000000000" if bits[0] == 0 else "01234567-89ab-7fff-bfff-ffffffffffff"
    assert str(task_id) == expected


def test_an_id_tells_when_it_was_made() -> None:
    before = int(datetime.now(UTC).timestamp() * 1000)
    milliseconds = new_task_id().int >> 80
    after = int(datetime.now(UTC).timestamp() * 1000)

    assert before <= milliseconds <= after


def test_ids_made_later_sort_later_as_numbers_and_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1_700_000_000_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: clock)
    ids: list[UUID] = []
    for step in (1, 1, 7, 255, 256, 65_535, 10**9):
        ids.append(new_task_id())
        clock += step * 1_000_000

    assert ids == sorted(ids)
    assert list(map(str, ids)) == sorted(map(str, ids))


def test_ids_of_one_millisecond_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    now: Any = 1_700_000_000_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now)

    assert len({new_task_id() for _ in range(10_000)}) == 10_000
