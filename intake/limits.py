"""Set the limits of a stage while it works, and list the stages with what holds for them."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import Statements, stage_table
from ..core.errors import NotFoundError


async def set_limits(connection: AsyncConnection, pipeline: str, stage: str, limits: Mapping[str, Any]) -> None:
    """Set some of ``rate`` (as ``200/s``, or ``off``), ``burst`` and ``max_running``, in the caller's transaction.

    They win over those of the code, until they are ``None`` again; the workers hear of it within a second. Raises
    ``NotFoundError``.
    """
    is_it = (stage_table.c.pipeline == pipeline) & (stage_table.c.stage == stage)
    if not (await connection.execute(update(stage_table).where(is_it).values(dict(limits)))).rowcount:
        raise NotFoundError(f"there is no stage {pipeline}.{stage}")


async def list_stages(
    connection: AsyncConnection, schema: str, *, pipeline: str | None = None
) -> Sequence[dict[str, Any]]:
    """The stages in force: ``pipeline``, ``stage``, ``after``, ``paused``, ``rate``, ``burst``, ``max_running``,
    ``limits_set``, true if people have set some of the limits, ``priorities``, and ``resting_until`` and ``trouble`` of
    those whose service is away."""
    rows = await connection.exec_driver_sql(Statements(__package__ or "", schema)["stages"], {"pipeline": pipeline})
    return [dict(row._mapping) for row in rows]
