"""Run stages of a task again: those that are dead letters, or one with all that comes after it."""

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import Statements
from ..core.errors import NotFoundError, RefusedError
from ..outbox.request import ready_stages
from .dead_letters import Selection, find_dead_letters, requeue
from .lookup import find_task


async def retry_dead(
    connection: AsyncConnection,
    task_id: UUID,
    schema: str,
    *,
    by: str,
    on_behalf_of: str | None = None,
    reason: str | None = None,
) -> list[str]:
    """Let the stages of a task that are dead letters begin anew, in the caller's transaction; returns their names.

    Raises ``NotFoundError`` if there is no such task, ``RefusedError`` if it has no unresolved dead letter.
    """
    letters = [letter for letter, _ in await find_dead_letters(connection, Selection(tasks=[task_id]))]
    requeued = await requeue(connection, letters, schema, by=by, on_behalf_of=on_behalf_of, reason=reason)
    if not requeued:
        task = await find_task(connection, task_id, schema)
        if task is None:
            raise NotFoundError(f"there is no task {task_id}")
        raise RefusedError(
            f"task {task_id} is {task['status']} and has no dead letter to requeue; name the stage that is to run again"
        )
    return sorted(stage for _, stage in requeued)


async def retry_from(
    connection: AsyncConnection,
    task_id: UUID,
    stage: str,
    schema: str,
    *,
    by: str,
    on_behalf_of: str | None = None,
    reason: str | None = None,
) -> list[str]:
    """Let ``stage`` and every stage after it run again as if they never had, in the caller's transaction.

    Returns their names. This is the one way in which a stage that was done runs again, and its effects happen again:
    a person has to ask for it. ``by``, ``on_behalf_of`` and ``reason`` stand in the task's journey. Raises
    ``NotFoundError`` if there is no such task or stage, ``RefusedError`` if the task is cancelled.
    """
    sql = Statements(__package__ or "", schema)
    await connection.exec_driver_sql(sql["hold"], {"task_id": [task_id]})
    parameters = {"task_id": task_id, "stage": stage, "by": by, "on_behalf_of": on_behalf_of, "reason": reason}
    stages = (await connection.exec_driver_sql(sql["retry"], parameters)).scalar_one_or_none()
    if stages is None:
        task = await find_task(connection, task_id, schema)
        if task is None:
            raise NotFoundError(f"there is no task {task_id}")
        if task["status"] == "cancelled":
            raise RefusedError(f"task {task_id} is cancelled; submit it again instead")
        raise NotFoundError(f"pipeline {task['pipeline']!r} has no stage {stage!r}")
    await connection.exec_driver_sql(*ready_stages(schema, reason="retry", tasks=[task_id]))
    return sorted(stages)
