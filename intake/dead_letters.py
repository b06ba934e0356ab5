"""Dead letters: list them, give them another chance, or close the file."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import Statements, dead_letter_table
from ..outbox.request import ready_stages


class Resolve(Protocol):
    """``requeue`` or ``discard``."""

    async def __call__(
        self,
        connection: AsyncConnection,
        dead_letter_ids: Iterable[int],
        schema: str,
        *,
        by: str,
        on_behalf_of: str | None = None,
        reason: str | None = None,
    ) -> list[tuple[UUID, str]]: ...


LARGEST_ID = 2**63 - 1
"""The largest id that a dead letter can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which of the unresolved dead letters: those that match every member that is given; with none, all of them."""

    pipeline: str | None = None
    stage: str | None = None
    fingerprint: str | None = None
    ids: Collection[int] | None = None
    """These, and all of ``tasks``."""
    tasks: Collection[UUID] | None = None
    """All of these tasks, and ``ids``."""
    pipelines: Collection[str] | None = None
    """No others than these may be touched."""

    def condition(self) -> ColumnElement[bool]:
        """As a condition on the table of dead letters."""
        column = dead_letter_table.c
        matches: list[ColumnElement[bool]] = [column.resolved_at.is_(None)]
        for name in ("pipeline", "stage", "fingerprint"):
            if (value := getattr(self, name)) is not None:
                matches.append(column[name] == value)
        if self.pipelines is not None:
            matches.append(column.pipeline.in_(self.pipelines))
        if self.ids is not None or self.tasks is not None:
            matches.append(or_(column.dead_letter_id.in_(self.ids or ()), column.task_id.in_(self.tasks or ())))
        return and_(*matches)


EVERY = Selection()
"""All unresolved dead letters."""


async def list_dead_letters(
    connection: AsyncConnection, selection: Selection = EVERY, *, after: int = 0, limit: int = 100
) -> Sequence[dict[str, Any]]:
    """The dead letters of ``selection`` whose ids are beyond ``after``, by their ids: at most ``limit``."""
    column = dead_letter_table.c.dead_letter_id
    query = select(dead_letter_table).where(selection.condition(), column > after).order_by(column).limit(limit)
    return [dict(row._mapping) for row in await connection.execute(query)]


async def find_dead_letters(connection: AsyncConnection, selection: Selection) -> list[tuple[int, UUID]]:
    """The ids of all dead letters of ``selection``, in their order, each with that of its task."""
    column = dead_letter_table.c
    query = select(column.dead_letter_id, column.task_id).where(selection.condition()).order_by(column.dead_letter_id)
    return [(row.dead_letter_id, row.task_id) for row in await connection.execute(query)]


async def list_groups(
    connection: AsyncConnection,
    schema: str,
    *,
    pipeline: str | None = None,
    stage: str | None = None,
    pipelines: Collection[str] | None = None,
) -> Sequence[dict[str, Any]]:
    """The unresolved dead letters by what they failed of: ``fingerprint``, ``letters`` (how many), ``reason`` (of the
    newest), ``oldest``, ``newest``; the largest groups first. Of no others than ``pipelines``, if that is given."""
    statement = Statements(__package__ or "", schema)["dead_letter_groups"]
    allowed = None if pipelines is None else list(pipelines)
    parameters = {"pipeline": pipeline, "stage": stage, "pipelines": allowed}
    rows = await connection.exec_driver_sql(statement, parameters)
    return [dict(row._mapping) for row in rows]


async def discard(
    connection: AsyncConnection,
    dead_letter_ids: Iterable[int],
    schema: str,
    *,
    by: str,
    on_behalf_of: str | None = None,
    reason: str | None = None,
) -> list[tuple[UUID, str]]:
    """Resolve these dead letters without another try, in the caller's transaction; their tasks stay failed.

    Returns the (task, stage) pairs; letters that are resolved already are left alone.
    """
    statement = Statements(__package__ or "", schema)["discard"]
    asked = {"by": by, "on_behalf_of": on_behalf_of, "reason": reason}
    parameters = {"dead_letter_id": list(dead_letter_ids)} | asked
    return [(row.task_id, row.stage) for row in await connection.exec_driver_sql(statement, parameters)]


async def requeue(
    connection: AsyncConnection,
    dead_letter_ids: Iterable[int],
    schema: str,
    *,
    by: str,
    on_behalf_of: str | None = None,
    reason: str | None = None,
) -> list[tuple[UUID, str]]:
    """Let the stages of these dead letters begin anew, with all their attempts, in the caller's transaction.

    ``by`` says who asks, ``on_behalf_of`` for whom, and ``reason`` why; they stand in the task's journey. Returns the
    (task, stage) pairs that were requeued; letters that are resolved, whose task was cancelled, or whose stage is gone
    are left alone.
    """
    sql = Statements(__package__ or "", schema)
    ids = {"dead_letter_id": list(dead_letter_ids)}
    asked = {"resolved_by": by, "on_behalf_of": on_behalf_of, "reason": reason}
    await connection.exec_driver_sql(sql["hold_dead"], ids)
    rows = await connection.exec_driver_sql(sql["requeue"], ids | asked)
    requeued = [(row.task_id, row.stage) for row in rows]
    if requeued:
        tasks = {task_id for task_id, _ in requeued}
        await connection.exec_driver_sql(*ready_stages(schema, reason="requeue", tasks=tasks))
    return requeued
