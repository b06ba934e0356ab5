"""Drop what is past its retention: leaves of the outbox ring, ticks, finished tasks, idempotency keys.

Nobody waits for it: a leaf is locked without waiting or left for the next time, rows go in small batches, and what is
locked is skipped. Nothing goes that an open task, an unresolved dead letter or a marker still needs.
"""

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ..core.database import Statements

LEAVES = range(8)
BATCH = 500
"""Rows that are deleted in one transaction."""


@dataclass(slots=True)
class Pruned:
    """What was dropped, or would be. ``events`` is the planner's guess; ``busy_leaves`` were in use and stay."""

    leaves: int = 0
    events: int = 0
    busy_leaves: int = 0
    ticks: int = 0
    tasks: int = 0
    keys: int = 0


async def prune(
    engine: AsyncEngine, schema: str, retention: timedelta, *, published: int | None, dry_run: bool = False
) -> Pruned:
    """Drop what is older than ``retention``, in transactions of its own; safe to run at any time, and by several.

    ``published`` is the tick of the earliest marker: what came after it has not reached Redis. If it is ``None``, as
    when Redis is away, events and ticks stay.
    """
    sql = Statements(__package__ or "", schema)
    pruned = Pruned()
    if published is not None:
        async with engine.connect() as connection:
            snapshot = (await connection.exec_driver_sql(sql["tick_snapshot"], {"tick": published})).scalar()
            await connection.commit()
        if snapshot is not None:
            for leaf in LEAVES:
                await _prune_leaf(engine, sql, leaf, snapshot, retention, pruned, dry_run=dry_run)
            if not dry_run:
                async with engine.begin() as connection:
                    parameters = {"tick": published, "retention": retention}
                    pruned.ticks = (await connection.exec_driver_sql(sql["prune_ticks"], parameters)).rowcount
    if dry_run:
        async with engine.connect() as connection:
            counted = await connection.exec_driver_sql(sql["count_old_tasks"], {"retention": retention})
            pruned.tasks = counted.scalar_one()
        return pruned
    pruned.tasks = await _in_batches(engine, sql["prune_tasks"], retention)
    pruned.keys = await _in_batches(engine, sql["prune_keys"], retention)
    return pruned


async def _prune_leaf(
    engine: AsyncEngine,
    sql: Statements,
    leaf: int,
    snapshot: str,
    retention: timedelta,
    pruned: Pruned,
    *,
    dry_run: bool,
) -> None:
    parameters = {"snapshot": snapshot, "retention": retention}
    is_old = sql["leaf_is_old"].replace("{leaf}", str(leaf))
    async with engine.begin() as connection:
        # Without the lock first: most leaves are not old, and are in use.
        before = (await connection.exec_driver_sql(is_old, parameters)).one()
    if not before.is_old:
        return
    if not dry_run:
        try:
            async with engine.begin() as connection:
                await connection.exec_driver_sql(sql["leaf_lock"].replace("{leaf}", str(leaf)))
                if not await _still_old(connection, is_old, parameters):
                    return
                await connection.exec_driver_sql(sql["leaf_truncate"].replace("{leaf}", str(leaf)))
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) != "55P03":
                raise
            pruned.busy_leaves += 1
            return
    pruned.leaves += 1
    pruned.events += before.events


async def _still_old(connection: AsyncConnection, statement: str, parameters: dict[str, object]) -> bool:
    return bool((await connection.exec_driver_sql(statement, parameters)).one().is_old)


async def _in_batches(engine: AsyncEngine, statement: str, retention: timedelta) -> int:
    total = 0
    while True:
        async with engine.begin() as connection:
            parameters = {"retention": retention, "limit": BATCH}
            count = (await connection.exec_driver_sql(statement, parameters)).rowcount
        total += count
        if count < BATCH:
            return total
