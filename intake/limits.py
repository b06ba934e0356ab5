"""Set the limits of a stage while it works, and list the stages with what holds for them."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import Statements, stage_table
from ..core.errors import NotFoundError
from ..outbox.operation import record


async def set_limits(
    connection: AsyncConnection,
    pipeline: str,
    stage: str,
    limits: Mapping[str, Any],
    *,
    by: str,
    on_behalf_of: str | None = None,
    reason: str | None = None,
) -> None:
    """Set some of ``rate`` (as ``200/s``, or ``off``), ``burst`` and ``max_running``, in the caller's transaction.

    They win over those of the code, until they are ``None`` again; the workers hear of it within a second. ``by``
    says who asks, and ``reason`` why, in the record of the operation. Raises ``NotFoundError``.
    """
    column = stage_table.c
    is_it = (column.pipeline == pipeline) & (column.stage == stage)
    held = select(column.rate, column.burst, column.max_running).where(is_it).with_for_update()
    before = (await connection.execute(held)).one_or_none()
    if before is None:
        raise NotFoundError(f"there is no stage {pipeline}.{stage}")
    await connection.execute(update(stage_table).where(is_it).values(dict(limits)))
    known = dict(before._mapping)
    await record(
        connection, "set limits", f"{pipeline}.{stage}", pipeline=pipeline,
        by=by, on_behalf_of=on_behalf_of, reason=reason, before=known, after=known | dict(limits),
    )  # fmt: skip


async def list_stages(
    connection: AsyncConnection, schema: str, *, pipeline: str | None = None
) -> Sequence[dict[str, Any]]:
    """The stages in force: ``pipeline``, ``stage``, ``after``, ``paused``, ``rate``, ``burst``, ``max_running``,
    ``limits_set``, true if people have set some of the limits, ``priorities``, and ``resting_until`` and ``trouble`` of
    those whose service is away."""
    rows = await connection.exec_driver_sql(Statements(__package__ or "", schema)["stages"], {"pipeline": pipeline})
    return [dict(row._mapping) for row in rows]
