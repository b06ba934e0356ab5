"""What the intake tells of tasks, as Python values. Members that a newer intake adds are passed over."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from ..core.task import Status


@dataclass(slots=True)  # frozen would take three times as long to make, and there may be millions
class Submitted:
    """A task that is in Postgres, and will travel.

    ``number`` is its place among many, from 1. ``is_replay``: it was there already when the request came that was
    answered, from an earlier call with its key or id, or from a request of this one whose answer was lost. ``key`` is
    its idempotency key, if it has one.
    """

    task_id: UUID
    pipeline: str
    created_at: datetime
    trace_id: str
    is_replay: bool = False
    key: str | None = None
    number: int = 1


@dataclass(frozen=True, slots=True)
class StageRunView:
    """What is known of one stage of a task. ``status``: done, failed, snoozed, waiting or dead."""

    stage: str
    status: str
    attempts: int
    result: Any
    error: str | None
    next_retry_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task as it stands now."""

    task_id: UUID
    pipeline: str
    status: Status
    stage_status: str
    stages_done: tuple[str, ...]
    retry_count: int
    version: int
    priority: str
    payload: Any
    labels: Mapping[str, str]
    trace_id: str
    not_before: datetime | None
    deadline: datetime | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    stages: tuple[StageRunView, ...]

    @property
    def is_terminal(self) -> bool:
        """True if the task goes no further by itself."""
        return self.status.is_terminal

    @property
    def results(self) -> dict[str, Any]:
        """What the stages have returned that are done."""
        return {run.stage: run.result for run in self.stages if run.status == "done"}


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """A step of a task's journey, as ``StageCompleted:allocate``; ``position`` is its place in the outbox."""

    position: int
    type: str
    stage: str | None
    data: Mapping[str, Any]
    occurred_at: datetime


def submitted(body: Mapping[str, Any], *, key: str | None, is_replay: bool, number: int = 1) -> Submitted:
    """From the shape ``AcceptedTask``. Of another one comes an error of Python's own, as in the others."""
    created_at = datetime.fromisoformat(body["created_at"])
    return Submitted(
        UUID(body["task_id"]), body["pipeline"], created_at, body["trace_id"], is_replay, key=key, number=number
    )


def task_view(body: Mapping[str, Any]) -> TaskView:
    """From the shape ``Task``."""
    return TaskView(
        task_id=UUID(body["task_id"]),
        pipeline=body["pipeline"],
        status=Status(body["status"]),
        stage_status=body["stage_status"],
        stages_done=tuple(body["stages_done"]),
        retry_count=body["retry_count"],
        version=body["version"],
        priority=body.get("priority", "normal"),
        payload=body["payload"],
        labels=body["labels"],
        trace_id=body["trace_id"],
        not_before=_moment(body.get("not_before")),
        deadline=_moment(body.get("deadline")),
        created_at=datetime.fromisoformat(body["created_at"]),
        updated_at=datetime.fromisoformat(body["updated_at"]),
        finished_at=_moment(body.get("finished_at")),
        stages=tuple(map(_stage_run_view, body["stages"])),
    )


def task_event(body: Mapping[str, Any]) -> TaskEvent:
    """From the shape ``Event``."""
    occurred_at = datetime.fromisoformat(body["occurred_at"])
    return TaskEvent(int(body["position"]), body["type"], body["stage"], body["data"], occurred_at)


def _stage_run_view(body: Mapping[str, Any]) -> StageRunView:
    return StageRunView(
        stage=body["stage"],
        status=body["status"],
        attempts=body["attempts"],
        result=body["result"],
        error=body["error"],
        next_retry_at=_moment(body["next_retry_at"]),
        started_at=_moment(body["started_at"]),
        finished_at=_moment(body["finished_at"]),
    )


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
