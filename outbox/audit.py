"""The audit trail: the journey of one task, and the invariants that hold for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import Statements

INVARIANTS = {
    "completed_without_all_stages": "a completed task has all its stages done",
    "stage_done_twice": "no stage of a task succeeds twice",
    "event_without_task": "no event without its task",
    "task_without_event": "no task without the event of its creation",
    "done_without_event": "no stage done without its event, and no such event without the stage done",
    "stages_done_differ": "a task lists exactly the stages that are done",
    "failed_without_dead_letter": "a task has failed exactly if a stage of it is a dead letter",
    "dead_letter_without_run": "a dead letter and its stage run agree",
    "open_without_next_step": "an open task has a stage that is ready to run",
    "key_without_task": "an idempotency key stands for a task",
    "writes_differ_from_version": "a task's version counts its writes",
}
"""What must hold for every task, by the name of the statement in ``sql/audit/`` that counts its violations."""


@dataclass(frozen=True, slots=True)
class Step:
    """One event in the journey of a task. ``position`` grows along the journey."""

    position: int
    type: str
    stage: str | None
    data: Any
    traceparent: str | None
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class Finding:
    """How many violations of one invariant there are."""

    name: str
    promise: str
    violations: int


async def journey(connection: AsyncConnection, task_id: UUID, schema: str, *, after: int = 0) -> Sequence[Step]:
    """The events of a task after position ``after``, oldest first; none for a task that there is not."""
    statement = Statements(__package__ or "", schema)["journey"]
    rows = await connection.exec_driver_sql(statement, {"task_id": task_id, "position": after})
    return [Step(**row._mapping) for row in rows]


async def audit(connection: AsyncConnection, schema: str) -> list[Finding]:
    """Count the violations of every invariant. Reads all tasks: minutes on millions of them.

    The caller's transaction should be ``repeatable read``, or work that goes on meanwhile looks like a violation.
    """
    sql = Statements(__package__ or "", schema)
    return [
        Finding(name, promise, int((await connection.exec_driver_sql(sql[f"audit/{name}"])).scalar_one()))
        for name, promise in INVARIANTS.items()
    ]
