"""The audit trail: the journey of one task, and the invariants that hold for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import Statements


class Invariant(NamedTuple):
    """What must hold for every task, and which of the promises of docs/guarantees.md would be broken if it did not."""

    number: int
    promise: str


INVARIANTS = {
    "key_without_task": Invariant(1, "an idempotency key stands for a task"),
    "completed_without_all_stages": Invariant(1, "a completed task has all its stages done"),
    "stage_done_twice": Invariant(2, "no stage of a task succeeds twice"),
    "stages_done_differ": Invariant(2, "a task lists exactly the stages that are done"),
    "task_without_event": Invariant(3, "no task without the event of its creation"),
    "event_without_task": Invariant(3, "no event without its task"),
    "done_without_event": Invariant(3, "no stage done without its event, and no such event without the stage done"),
    "attempts_differ_from_events": Invariant(3, "a stage has as many attempts as its events say"),
    "writes_differ_from_version": Invariant(3, "a task's version counts its writes"),
    "failed_without_dead_letter": Invariant(3, "a task has failed exactly if a stage of it is a dead letter"),
    "dead_letter_without_run": Invariant(3, "a dead letter and its stage run agree"),
    "done_before_its_cause": Invariant(4, "no stage is done before those that it waits for"),
    "open_without_next_step": Invariant(5, "an open task has a stage that is ready to run"),
    "ready_without_event": Invariant(6, "a stage that is ready was asked for"),
}
"""By the name of the statement in ``sql/audit/`` that finds the violations. Promise 5 is that what Redis has lost is
asked for again: a rebuild asks for the stages that are ready, and so for every open task that has one."""


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
    """How many violations of one invariant there are, and up to five of the tasks that they are of."""

    name: str
    number: int
    promise: str
    violations: int
    tasks: tuple[UUID, ...] = ()


async def journey(connection: AsyncConnection, task_id: UUID, schema: str, *, after: int = 0) -> Sequence[Step]:
    """The events of a task after position ``after``, oldest first; none for a task that there is not."""
    statement = Statements(__package__ or "", schema)["journey"]
    rows = await connection.exec_driver_sql(statement, {"task_id": task_id, "position": after})
    return [Step(**row._mapping) for row in rows]


async def audit(connection: AsyncConnection, schema: str) -> list[Finding]:
    """Find the violations of every invariant. Reads all tasks: minutes on millions of them.

    The caller's transaction should be ``repeatable read``, or work that goes on meanwhile looks like a violation.
    """
    sql = Statements(__package__ or "", schema)
    findings = []
    for name, (number, promise) in INVARIANTS.items():
        found = (await connection.exec_driver_sql(sql[f"audit/{name}"])).one()
        findings.append(Finding(name, number, promise, found.violations, tuple(found.tasks)))
    return findings
