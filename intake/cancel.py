"""Cancel tasks."""

from collections.abc import Iterable
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import Statements


async def cancel(
    connection: AsyncConnection,
    task_ids: Iterable[UUID],
    schema: str,
    *,
    by: str,
    on_behalf_of: str | None = None,
    reason: str | None = None,
) -> list[UUID]:
    """Cancel those of the tasks that are not completed or cancelled yet, in the caller's transaction.

    Returns which they were. Their dead letters are discarded. A handler that runs is ended within a second or so, and
    whatever it still commits changes nothing; its own transaction is rolled back. ``by``, ``on_behalf_of``
    (for whom they say they ask) and ``reason`` stand in the task's journey.
    """
    sql = Statements(__package__ or "", schema)
    ids = {"task_id": list(task_ids)}
    await connection.exec_driver_sql(sql["hold"], ids)
    asked = {"by": by, "on_behalf_of": on_behalf_of, "reason": reason}
    rows = await connection.exec_driver_sql(sql["cancel"], ids | asked)
    return [row.task_id for row in rows]
