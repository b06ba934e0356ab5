"""Lists of tasks, page by page, by what they have in common.

Pages go by the place of their last task, never by a count of those before, so that each costs the same. There are two
ways to a page. *Walk*: read the tasks of the pipelines in question from the newest on, along an index, until the page
is full: fast where one in thousands is wanted. *Seek*: read the few that a label, a fingerprint or an id leads to, and
sort them. Which it is, is decided by how many there are to seek. What neither does in time ends with
``TooSlowError``: no list may hold up the work.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.errors import QueryCanceled
from sqlalchemy import ColumnElement, Select, and_, exists, func, literal, select, tuple_
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import Text

from ..core.database import dead_letter_table, intake_key_table, pipeline_table, stage_table, task_table
from ..core.errors import TooSlowError
from ..core.priority import Priority
from .cursor import Place

PATIENCE = 5
"""Seconds that a statement for a list may take."""

SOUGHT = 5000
"""Tasks up to which it is faster to sort what an index leads to than to walk."""

GLANCE = 2000
"""So many of the newest tasks are looked at before a label is sought: one that is common is among them."""

_task = task_table.c
_letter = dead_letter_table.c
_ORDER = (_task.created_at.desc(), _task.task_id.desc())
_PLACE = tuple_(_task.created_at, _task.task_id)
_IS_UNFINISHED = _task.status.not_in(("completed", "cancelled"))
_SHOWN = (
    _task.task_id,
    _task.pipeline,
    _task.priority,
    _task.status,
    _task.stage_status,
    _task.stages_done,
    _task.retry_count,
    _task.labels,
    _task.trace_id,
    _task.not_before,
    _task.deadline,
    _task.created_at,
    _task.updated_at,
    _task.finished_at,
    _task.submitted_by,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which tasks: those that match every member that is given; with none, all of them.

    ``stage``: they are there now, ready or after an attempt that failed, snoozed, waits or was the last.
    ``fingerprint``: they have an unresolved dead letter of it. ``q``: a task's id or its first 8 hexadecimal digits or
    more, an idempotency key, or a trace's id. ``pipelines``: those that the caller may see at all; ``None``: all.
    """

    status: str | None = None
    pipeline: str | None = None
    stage: str | None = None
    labels: Collection[tuple[str, str]] = ()
    """Names and values; the tasks have all of them."""
    created_after: datetime | None = None
    """At this moment or later."""
    created_before: datetime | None = None
    """Earlier than this moment."""
    fingerprint: str | None = None
    q: str | None = None
    pipelines: Collection[str] | None = None


async def list_tasks(
    connection: AsyncConnection,
    wanted: Filter,
    *,
    after: Place | None = None,
    limit: int = 50,
    patience: int = PATIENCE,
) -> tuple[Sequence[dict[str, Any]], Place | None]:
    """A page: the newest ``limit`` tasks of ``wanted`` after ``after``, without payloads, and where the next begins.

    In a transaction that does nothing else: its planner is bounded, and each statement to ``patience`` seconds. Raises
    ``TooSlowError``.
    """
    await _bound(connection, patience)
    try:
        rows = await _page(connection, wanted, after, limit + 1)
    except DBAPIError as error:
        if isinstance(error.orig, QueryCanceled):
            raise TooSlowError(
                f"the list took longer than {patience} s: ask for less, by pipeline, status or created_after"
            ) from error
        raise
    shown = rows[:limit]
    following = Place(shown[-1]["created_at"], shown[-1]["task_id"]) if len(rows) > limit else None
    return shown, following


async def _bound(connection: AsyncConnection, patience: int) -> None:
    """Let no statement take long, and have it planned for this filter, along an index."""
    await _set(
        connection, statement_timeout=f"{patience}s", plan_cache_mode="force_custom_plan", jit="off",
        enable_sort="off", enable_bitmapscan="off", enable_seqscan="off", enable_hashjoin="off", enable_mergejoin="off",
        max_parallel_workers_per_gather="0",
    )  # fmt: skip


async def _set(connection: AsyncConnection, **settings: str) -> None:
    """For the rest of the transaction."""
    await connection.execute(select(*(func.set_config(name, value, True) for name, value in settings.items())))


async def _page(
    connection: AsyncConnection, wanted: Filter, after: Place | None, limit: int
) -> Sequence[dict[str, Any]]:
    conditions = _conditions(wanted, after)
    sought: Collection[UUID] | None = None
    if wanted.q is not None:
        sought = await _named(connection, wanted, wanted.q)
    elif wanted.fingerprint is not None:
        sought = await _failed_of(connection, wanted.fingerprint)
    elif wanted.labels:
        since = await _since(connection, wanted, after)
        newest = [] if since is None else [_literal(since) <= _PLACE]
        rows = await _read(connection, _walk(wanted, [*conditions, *newest], limit))
        if since is None or len(rows) == limit:
            return rows
        sought = await _labelled(connection, conditions)
    if sought is None:
        return await _read(connection, _walk(wanted, conditions, limit))
    await _set(connection, enable_sort="on")
    these = select(*_SHOWN).where(_task.task_id.in_(sought), *_allowed(wanted), *conditions)
    return await _read(connection, these.order_by(*_ORDER).limit(limit))


async def _read(connection: AsyncConnection, query: Select[Any]) -> Sequence[dict[str, Any]]:
    rows = [dict(row._mapping) for row in await connection.execute(query)]
    return [row | {"priority": Priority(row["priority"]).word} for row in rows]


# What is asked for, as conditions


def _conditions(wanted: Filter, after: Place | None) -> list[ColumnElement[bool]]:
    """All that ``wanted`` says of a task, but for its pipeline; and that its place is beyond ``after``."""
    said: list[ColumnElement[bool]] = []
    if wanted.status is not None:
        said.append(_task.status == wanted.status)
    if wanted.stage is not None:
        is_ready = exists().where(
            stage_table.c.pipeline == _task.pipeline,
            stage_table.c.stage == wanted.stage,
            stage_table.c.after.contained_by(_task.stages_done),
        )
        said += [_IS_UNFINISHED, is_ready, literal(wanted.stage, Text) != func.all(_task.stages_done)]
    if wanted.labels:
        said += [_task.labels != {}, *(_task.labels.contains({name: value}) for name, value in wanted.labels)]
    if wanted.created_after is not None:
        said.append(_task.created_at >= wanted.created_after)
    if wanted.created_before is not None:
        said.append(_task.created_at < wanted.created_before)
    if wanted.fingerprint is not None:
        has_it = exists().where(_letter.task_id == _task.task_id, _is_open_letter(wanted.fingerprint))
        # A task that has a dead letter has failed.
        said += [_task.status == "failed", has_it]
    if after is not None:
        said.append(_literal(after) > _PLACE)
    return said


def _literal(place: Place) -> ColumnElement[Any]:
    return tuple_(literal(place.created_at), literal(place.task_id))


def _allowed(wanted: Filter) -> list[ColumnElement[bool]]:
    """What ``wanted`` says of a task's pipeline."""
    said: list[ColumnElement[bool]] = []
    if wanted.pipeline is not None:
        said.append(_task.pipeline == wanted.pipeline)
    if wanted.pipelines is not None:
        said.append(_task.pipeline.in_(wanted.pipelines))
    return said


def _is_open_letter(fingerprint: str) -> ColumnElement[bool]:
    return and_(_letter.fingerprint == fingerprint, _letter.resolved_at.is_(None))


# Walk


def _walk(wanted: Filter, conditions: Sequence[ColumnElement[bool]], limit: int) -> Select[Any]:
    """The newest that meet ``conditions``: of all tasks, along task_created_at; or pipeline by pipeline, along
    task_unfinished, task_failed_or_cancelled or task_pipeline, and of these the newest."""
    names = _pipelines(wanted)
    if names is None:
        return select(*_SHOWN).where(*conditions).order_by(*_ORDER).limit(limit)
    of_one = select(*_SHOWN).where(_task.pipeline == names.c.pipeline, *conditions).order_by(*_ORDER).limit(limit)
    shown = of_one.lateral("shown")
    order = (shown.c.created_at.desc(), shown.c.task_id.desc())
    return select(shown).select_from(names.join(shown, literal(True))).order_by(*order).limit(limit)


def _pipelines(wanted: Filter) -> Any:
    """The pipelines whose tasks are in question; ``None``: all, and nothing is asked that is rare among them."""
    if wanted.stage is not None:
        names = select(stage_table.c.pipeline).where(stage_table.c.stage == wanted.stage)
    elif wanted.status or wanted.pipeline or wanted.fingerprint or wanted.pipelines is not None:
        names = select(pipeline_table.c.pipeline)
    else:
        return None
    name = names.selected_columns.pipeline
    if wanted.pipeline is not None:
        names = names.where(name == wanted.pipeline)
    if wanted.pipelines is not None:
        names = names.where(name.in_(wanted.pipelines))
    return names.subquery("names")


async def _since(connection: AsyncConnection, wanted: Filter, after: Place | None) -> Place | None:
    """The place of the last of ``GLANCE`` tasks after ``after``; ``None`` if there are not so many."""
    bounds = Filter(pipeline=wanted.pipeline, pipelines=wanted.pipelines, created_before=wanted.created_before)
    newest = _walk(bounds, _conditions(bounds, after), GLANCE).subquery("newest")
    rows = await connection.execute(select(newest.c.created_at, newest.c.task_id))
    places = [Place(row.created_at, row.task_id) for row in rows]
    return min(places) if len(places) == GLANCE else None


# Seek


async def _named(connection: AsyncConnection, wanted: Filter, q: str) -> Collection[UUID]:
    """The tasks of which ``q`` is the id, the beginning of the id, the idempotency key or the trace."""
    names = _pipelines(wanted) if wanted.pipeline or wanted.pipelines is not None else None
    names = select(pipeline_table.c.pipeline).subquery("names") if names is None else names
    key = intake_key_table.c
    # Unique; the limit keeps the planner from reading the keys of all pipelines at once.
    of_key = select(key.task_id).where(key.pipeline == names.c.pipeline, key.key == q).limit(1).lateral("keyed")
    found = set(await connection.scalars(select(of_key.c.task_id).select_from(names.join(of_key, literal(True)))))
    digits = q.replace("-", "").lower()
    if not re.fullmatch(r"[0-9a-f]{8,32}", digits):
        return found
    first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    of_id = select(_task.task_id).where(_task.task_id.between(first, last)).limit(SOUGHT + 1)
    found |= set(await connection.scalars(of_id))
    if len(found) > SOUGHT:
        raise TooSlowError(f"more than {SOUGHT:,} tasks have an id that begins with {q}: give more of it")
    if not found and len(q) == 32:
        # No index has it: that would cost every task more than the rare question is worth.
        await _set(connection, enable_seqscan="on", max_parallel_workers_per_gather="2")
        said = Filter(created_after=wanted.created_after, created_before=wanted.created_before)
        of_trace = select(_task.task_id).where(_task.trace_id == digits, *_conditions(said, None)).limit(SOUGHT)
        found |= set(await connection.scalars(of_trace))
    return found


async def _failed_of(connection: AsyncConnection, fingerprint: str) -> Collection[UUID] | None:
    """The tasks with an unresolved dead letter of ``fingerprint``; ``None`` if they are too many to sort."""
    query = select(_letter.task_id).where(_is_open_letter(fingerprint)).limit(SOUGHT + 1)
    found = set(await connection.scalars(query))
    return found if len(found) <= SOUGHT else None


async def _labelled(connection: AsyncConnection, conditions: Sequence[ColumnElement[bool]]) -> Collection[UUID] | None:
    """The tasks that meet ``conditions``, by task_labels; ``None`` if they are too many to sort."""
    await _set(connection, enable_bitmapscan="on", enable_indexscan="off")
    found = set(await connection.scalars(select(_task.task_id).where(*conditions).limit(SOUGHT + 1)))
    await _set(connection, enable_bitmapscan="off", enable_indexscan="on")
    return found if len(found) <= SOUGHT else None
