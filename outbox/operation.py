"""What people did to other things than one task: who, what, why, and how it was before and after.

What they did to a task is in its journey. The view ``operator_actions`` has both.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import operation_table


async def record(
    connection: AsyncConnection,
    action: str,
    target: str,
    *,
    by: str,
    on_behalf_of: str | None = None,
    reason: str | None = None,
    pipeline: str | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Record ``action`` on ``target`` in the transaction of ``connection``, which is the one that does it.

    ``pipeline`` is the one that it concerns, if it is one. ``before`` and ``after`` are JSON.
    """
    values = {
        "by": by,
        "on_behalf_of": on_behalf_of,
        "action": action,
        "target": target,
        "pipeline": pipeline,
        "reason": reason,
        "before": before,
        "after": after,
    }
    known = {name: value for name, value in values.items() if value is not None}
    await connection.execute(insert(operation_table).values(known))
