"""Look one task up with its stage runs, and count all."""

from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import Statements, outbox_table, task_table


async def find_task(connection: AsyncConnection, task_id: UUID, schema: str) -> dict[str, Any] | None:
    """The task as the API shows it, with its stage runs under ``stages``; ``None`` if there is no such task."""
    statement = Statements(__package__ or "", schema)["task"]
    row = (await connection.exec_driver_sql(statement, {"task_id": task_id})).one_or_none()
    return dict(row._mapping) if row else None


async def find_pipeline(connection: AsyncConnection, task_id: UUID) -> str | None:
    """The pipeline of a task, also of one of which only events are left; ``None`` if there is no such task."""
    from_task = select(task_table.c.pipeline).where(task_table.c.task_id == task_id)
    from_events = select(outbox_table.c.pipeline).where(outbox_table.c.task_id == task_id).limit(1)
    return await connection.scalar(from_task) or await connection.scalar(from_events)


async def count_tasks(connection: AsyncConnection) -> tuple[dict[str, int], int]:
    """How many tasks there are by status, and the sum of their retries. Reads all tasks."""
    query = select(task_table.c.status, func.count(), func.sum(task_table.c.retry_count)).group_by(task_table.c.status)
    rows = (await connection.execute(query)).all()
    return {status: count for status, count, _ in rows}, sum(retries for _, _, retries in rows)
