"""What people do with schedules: make, list, pause, resume and remove them, and run one now."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.cron import Cron
from ..core.database import schedule_table
from ..core.errors import DeclarationError, NotFoundError, RefusedError
from ..core.jsontext import check
from ..core.moment import rfc3339
from ..outbox.operation import record
from ..outbox.submit import Accepted, submit

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,63}", re.ASCII)


async def add(
    connection: AsyncConnection,
    schedule: str,
    pipeline: str,
    cron: str,
    schema: str,
    *,
    by: str,
    reason: str | None = None,
    timezone: str = "UTC",
    payload: Any = None,
    labels: Mapping[str, str] | None = None,
    replace: bool = False,
) -> datetime:
    """Make a schedule in the caller's transaction; returns its first tick.

    Whatever is done to schedules is recorded as an operation: ``by`` says who asks, and ``reason`` why.

    With ``replace`` it may be there already, and goes on by the new line from now on; whether it is paused stays.
    Raises ``DeclarationError`` for a name, line or time zone that is none, ``UnstorableError`` for a payload or labels
    that no task could have, ``NotFoundError`` for an unknown pipeline, ``RefusedError`` if there is such a schedule.
    """
    if not _NAME.fullmatch(schedule):
        raise DeclarationError(f"{schedule!r}: the name of a schedule is 1 to 63 letters, digits, '_', '.' and '-'")
    next_at = Cron(cron, timezone).next(await _now(connection))
    check(payload)
    await _try(connection, pipeline, payload, labels, schema)
    values = {
        "schedule": schedule,
        "pipeline": pipeline,
        "cron": cron,
        "timezone": timezone,
        "payload": payload,
        "labels": dict(labels or {}),
        "next_at": next_at,
    }
    known = select(schedule_table).where(_is(schedule)).with_for_update()
    before = (await connection.execute(known)).one_or_none()
    statement = insert(schedule_table).values(values | {"paused": False, "created_at": func.now()})
    if replace:
        statement = statement.on_conflict_do_update(index_elements=["schedule"], set_=values)
    else:
        statement = statement.on_conflict_do_nothing()
    if (await connection.execute(statement.returning(schedule_table.c.schedule))).one_or_none() is None:
        raise RefusedError(f"there is a schedule {schedule!r} already; replace it, or choose another name")
    await record(
        connection, "add schedule" if before is None else "replace schedule", schedule, pipeline=pipeline,
        by=by, reason=reason, before=None if before is None else _told(dict(before._mapping)), after=_told(values),
    )  # fmt: skip
    return next_at


async def list_schedules(connection: AsyncConnection) -> Sequence[dict[str, Any]]:
    """All schedules, by name, with every column of theirs."""
    rows = await connection.execute(select(schedule_table).order_by(schedule_table.c.schedule))
    return [dict(row._mapping) for row in rows]


async def pause(connection: AsyncConnection, schedule: str, *, by: str, reason: str | None = None) -> bool:
    """Let the ticks of a schedule pass from now on; returns whether it was not paused. Raises ``NotFoundError``."""
    row = await _hold(connection, schedule)
    if row["paused"]:
        return False
    await connection.execute(update(schedule_table).where(_is(schedule)).values(paused=True))
    await record(
        connection, "pause schedule", schedule, pipeline=row["pipeline"],
        by=by, reason=reason, before={"paused": False}, after={"paused": True},
    )  # fmt: skip
    return True


async def resume(connection: AsyncConnection, schedule: str, *, by: str, reason: str | None = None) -> datetime:
    """Submit by a schedule again, from its next tick on: those that passed meanwhile are gone. Returns that tick.

    Raises ``NotFoundError``.
    """
    row = await _hold(connection, schedule)
    next_at: datetime = row["next_at"]
    if row["paused"]:
        next_at = Cron(row["cron"], row["timezone"]).next(await _now(connection))
        await connection.execute(update(schedule_table).where(_is(schedule)).values(paused=False, next_at=next_at))
        await record(
            connection, "resume schedule", schedule, pipeline=row["pipeline"],
            by=by, reason=reason, before={"paused": True}, after={"paused": False},
        )  # fmt: skip
    return next_at.astimezone(UTC)


async def remove(connection: AsyncConnection, schedule: str, *, by: str, reason: str | None = None) -> None:
    """Remove a schedule; what it has submitted stays. Raises ``NotFoundError``."""
    row = await _hold(connection, schedule)
    await connection.execute(delete(schedule_table).where(_is(schedule)))
    await record(
        connection, "remove schedule", schedule, pipeline=row["pipeline"], by=by, reason=reason, before=_told(row)
    )


async def run_now(
    connection: AsyncConnection, schedule: str, schema: str, *, by: str, reason: str | None = None
) -> UUID:
    """Submit a task of a schedule, paused or not, beside its ticks; returns the task's id. Raises ``NotFoundError``."""
    row = await _hold(connection, schedule)
    accepted: Accepted = await submit(connection, row["pipeline"], row["payload"], labels=row["labels"], schema=schema)
    await connection.execute(update(schedule_table).where(_is(schedule)).values(last_task=accepted.task_id))
    await record(
        connection, "run schedule", schedule, pipeline=row["pipeline"],
        by=by, reason=reason, after={"task_id": str(accepted.task_id)},
    )  # fmt: skip
    return accepted.task_id


async def _try(
    connection: AsyncConnection, pipeline: str, payload: Any, labels: Mapping[str, str] | None, schema: str
) -> None:
    """Raise what a submission of this would raise, and leave nothing of it."""
    savepoint = await connection.begin_nested()
    try:
        await submit(connection, pipeline, payload, labels=labels, schema=schema)
    finally:
        await savepoint.rollback()


async def _hold(connection: AsyncConnection, schedule: str) -> Mapping[str, Any]:
    rows = await connection.execute(select(schedule_table).where(_is(schedule)).with_for_update())
    row = rows.one_or_none()
    if row is None:
        raise NotFoundError(f"there is no schedule {schedule!r}")
    return dict(row._mapping)


async def _now(connection: AsyncConnection) -> datetime:
    return (await connection.execute(select(func.clock_timestamp()))).scalar_one()  # type: ignore[no-any-return]


def _is(schedule: str) -> Any:
    return schedule_table.c.schedule == schedule


def _told(schedule: Mapping[str, Any]) -> dict[str, Any]:
    """What is recorded of a schedule; its payload may be large, and a secret."""
    told = {name: schedule[name] for name in ("pipeline", "cron", "timezone", "labels")}
    return told | {"next_at": rfc3339(schedule["next_at"])}
