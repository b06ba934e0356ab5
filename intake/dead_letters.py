"""Dead letters: list them, give them another chance, or close the file."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import Statements, dead_letter_table
from ..outbox.request import ready_stages


async def list_dead_letters(
    connection: AsyncConnection,
    *,
    pipeline: str | None = None,
    stage: str | None = None,
    fingerprint: str | None = None,
    task_id: UUID | None = None,
    limit: int | None = 100,
) -> Sequence[dict[str, Any]]:
    """The unresolved dead letters that match, oldest first, at most ``limit``."""
    column = dead_letter_table.c
    query = select(dead_letter_table).where(column.resolved_at.is_(None))
    for name, value in (
        ("pipeline", pipeline),
        ("stage", stage),
        ("fingerprint", fingerprint),
        ("task_id", task_id),
    ):
        if value is not None:
            query = query.where(column[name] == value)
    rows = await connection.execute(query.order_by(column.dead_letter_id).limit(limit))
    return [dict(row._mapping) for row in rows]


async def list_groups(
    connection: AsyncConnection, schema: str, *, pipeline: str | None = None, stage: str | None = None
) -> Sequence[dict[str, Any]]:
    """The unresolved dead letters by what they failed of: ``fingerprint``, ``letters`` (how many), ``reason`` (of the
    newest), ``oldest``, ``newest``; the largest groups first."""
    statement = Statements(__package__ or "", schema)["dead_letter_groups"]
    rows = await connection.exec_driver_sql(statement, {"pipeline": pipeline, "stage": stage})
    return [dict(row._mapping) for row in rows]


async def discard(
    connection: AsyncConnection,
    dead_letter_ids: Iterable[int],
    schema: str,
    *,
    by: str,
    reason: str | None = None,
) -> list[tuple[UUID, str]]:
    """Resolve these dead letters without another try, in the caller's transaction; their tasks stay failed.

    Returns the (task, stage) pairs; letters that are resolved already are left alone.
    """
    statement = Statements(__package__ or "", schema)["discard"]
    parameters = {"dead_letter_id": list(dead_letter_ids), "by": by, "reason": reason}
    return [(row.task_id, row.stage) for row in await connection.exec_driver_sql(statement, parameters)]


async def requeue(
    connection: AsyncConnection,
    dead_letter_ids: Iterable[int],
    schema: str,
    *,
    by: str,
    reason: str | None = None,
) -> list[tuple[UUID, str]]:
    """Let the stages of these dead letters begin anew, with all their attempts, in the caller's transaction.

    ``by`` says who asks and ``reason`` why; both stand in the task's journey. Returns the (task, stage) pairs that
    were requeued; letters that are resolved, or whose task was cancelled, are left alone.
    """
    sql = Statements(__package__ or "", schema)
    ids = {"dead_letter_id": list(dead_letter_ids)}
    await connection.exec_driver_sql(sql["hold_dead"], ids)
    rows = await connection.exec_driver_sql(sql["requeue"], ids | {"resolved_by": by, "reason": reason})
    requeued = [(row.task_id, row.stage) for row in rows]
    if requeued:
        tasks = {task_id for task_id, _ in requeued}
        await connection.exec_driver_sql(*ready_stages(schema, reason="requeue", tasks=tasks))
    return requeued
