"""Why a task is where it is: for each of its stages that is not done one sentence, and what that is made of.

Postgres is asked first and knows most. Redis is asked only for stages that are ready, with little patience: whether
what asked for them has been published, and where the entry is. Without Redis the sentence says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import Statements
from ..core.errors import NotFoundError
from ..core.moment import rfc3339
from ..core.priority import Priority
from ..core.rate import Rate
from .process import INTERVAL
from .whereabouts import LOOKED_AT, Locator, Spot, Wanted, Whereabouts


class State(StrEnum):
    """What a stage of a task, or a task that has ended, is in; the most telling first."""

    COMPLETED = "completed"
    """All stages are done."""
    CANCELLED = "cancelled"
    """Somebody cancelled the task."""
    DEAD = "dead"
    """It will not be retried by itself: a person requeues or discards it."""
    DISCARDED = "discarded"
    """A dead letter that was discarded."""
    RUNNING = "running"
    """A process runs it."""
    WAITING = "waiting"
    """A service has it, and will report."""
    HELD = "held"
    """A process has its entry, and has not said yet that it runs."""
    RETRYING = "retrying"
    """It failed or snoozed, and is tried again at a date."""
    SCHEDULED = "scheduled"
    """Its task may not start before a date."""
    UNPUBLISHED = "unpublished"
    """The event that asks for it is in the outbox, and no relay has published it yet."""
    PAUSED = "paused"
    """The stage is paused."""
    UNSERVED = "unserved"
    """No process that lives runs the stage."""
    RESTING = "resting"
    """The service behind the stage is away."""
    LIMITED = "limited"
    """The limits of the stage let nothing more begin just now."""
    QUEUED = "queued"
    """In the stream, or parked and due: the next worker that is free takes it."""
    LOST = "lost"
    """It was published, and is nowhere in Redis: the sweep asks for it again."""
    READY = "ready"
    """It may run; where it is only Redis knows, which was not asked or did not answer."""
    BLOCKED = "blocked"
    """Other stages come first."""


@dataclass(frozen=True, slots=True)
class Reason:
    """What holds up one stage; or, without one, that the task has ended.

    ``since`` when it has been so, ``until`` when it is to be, if there is a date; ``by`` is the person or the process
    that it is due to. ``sentence`` says all that in words.
    """

    stage: str | None
    state: State
    sentence: str
    since: datetime | None = None
    until: datetime | None = None
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a task is where it is. ``headline`` is the most telling of the sentences of ``reasons``."""

    task_id: UUID
    pipeline: str
    status: str
    headline: str
    reasons: tuple[Reason, ...]


async def explain(connection: AsyncConnection, task_id: UUID, schema: str, locator: Locator) -> Explanation:
    """Why the task is where it is, as of now. Reads only; what it says may be over when it is said.

    Raises ``NotFoundError`` if there is no such task.
    """
    sql = Statements(__package__ or "", schema)
    rows = [dict(row._mapping) for row in await connection.exec_driver_sql(sql["explain"], {"task_id": task_id})]
    if not rows:
        raise NotFoundError(f"there is no task {task_id}")
    ready = {row["stage"]: row for row in rows if row["state"] in ("ready", "paused", "resting")}
    found: Mapping[str, Whereabouts] | str = {}
    if ready:
        found = await locator.locate(task_id, [_wanted(row) for row in ready.values()])
    if not isinstance(found, str):
        await _look_up_published(connection, sql["published"], ready, found)
    reasons = sorted((reason_of(row, found) for row in rows), key=lambda reason: _TELLING.index(reason.state))
    return Explanation(task_id, rows[0]["pipeline"], rows[0]["status"], reasons[0].sentence, tuple(reasons))


_TELLING = list(State)


def _wanted(row: Mapping[str, Any]) -> Wanted:
    rate = Rate.parse(row["rate"], row["burst"]) if row["rate"] else None
    return Wanted(row["pipeline"], row["stage"], Priority(row["priority"]), row["has_lanes"], rate)


async def _look_up_published(
    connection: AsyncConnection, statement: str, ready: Mapping[str, dict[str, Any]], found: Mapping[str, Whereabouts]
) -> None:
    """Add to the rows in ``ready`` whether, by the markers that were found, what asks for them has been published."""
    known = [(row, marker) for stage, row in ready.items() if (marker := found[stage].marker) and row["xid"]]
    parameters = {
        "position": [row["position"] for row, _ in known],
        "xid": [row["xid"] for row, _ in known],
        "tick": [marker.tick for _, marker in known],
        "upto": [marker.position for _, marker in known],
    }
    told = await connection.exec_driver_sql(statement, parameters)
    for (row, _), one in zip(known, told.all(), strict=True):
        row |= one._mapping


def reason_of(row: Mapping[str, Any], found: Mapping[str, Whereabouts] | str) -> Reason:
    """What holds up the stage of ``row`` (see explain.sql), given what Redis says of it, or why it says nothing."""
    if row["stage"] is None:
        return _ended(row)
    because = f": {row['reason']}" if row["reason"] else ""
    since, until, worker, attempts = _at(row["since"]), _at(row["until"]), row["worker"], row["attempts"]
    match row["state"]:
        case "dead":
            count = "1 attempt" if attempts == 1 else f"{attempts} attempts"
            return _said(row, State.DEAD, f"is a dead letter since {since}, after {count}{because}")
        case "discarded":
            by = row["resolved_by"]
            return _said(row, State.DISCARDED, f"was given up: {by} discarded its dead letter{because}", by=by)
        case "running":
            return _said(row, State.RUNNING, f"runs on {worker} since {since} (attempt {attempts})", by=worker)
        case "waiting":
            sentence = f"waits for the report of its service until {until}, which has the work since {since}"
            return _said(row, State.WAITING, sentence, until=row["until"])
        case "retrying":
            after = f"attempt {attempts}" if attempts else "a snooze"
            sentence = f"is tried again at {until}, after {after}{because}"
            return _said(row, State.RETRYING, sentence, until=row["until"], by=worker)
        case "scheduled":
            return _said(row, State.SCHEDULED, f"may not start before {until}", until=row["until"])
        case "blocked":
            return _said(row, State.BLOCKED, f"waits for {' and '.join(row['waits_for'])}")
        case _:
            return _ready(row, found if isinstance(found, str) else found[row["stage"]])


def _ended(row: Mapping[str, Any]) -> Reason:
    """Of a task that has nothing left to do."""
    at, by = row["finished_at"], row["ended_by"]
    match row["status"]:
        case "completed":
            return Reason(None, State.COMPLETED, f"it completed at {_at(at)}", at)
        case "cancelled":
            who = f" by {by}" if by else ""
            because = f": {row['ended_because']}" if row["ended_because"] else ""
            return Reason(None, State.CANCELLED, f"it was cancelled at {_at(at)}{who}{because}", at, by=by)
        case status:
            # No way leads here; if one does, that is what the audit is for.
            return Reason(None, State.LOST, f"it is {status}, but no stage of it is left to do: see postroad audit")


def _ready(row: Mapping[str, Any], found: Whereabouts | str) -> Reason:
    """Of a stage that could run: the first of all that it still has to pass."""
    if _is_unpublished(row, found):
        asked = f"is in the outbox since {_at(row['asked_at'])}, not yet published"
        if not row["is_relayed"]:
            return _said(row, State.UNPUBLISHED, f"{asked}: no relay has worked {_gone(row['relay_seen_at'])}")
        if (until := row.get("published_until")) is not None:
            asked += f"; published are the events up to {_at(until)}"
        return _said(row, State.UNPUBLISHED, asked)
    if row["paused"]:
        by, because = row["switched_by"], row["switched_because"] or row["trouble"]
        when = f" since {_at(row['switched_at'])}" if row["switched_at"] else ""
        sentence = f"is paused{when} by {by or 'itself'}{f': {because}' if because else ''}"
        return _said(row, State.PAUSED, sentence, since=row["switched_at"] or row["since"], by=by)
    if not row["workers"]:
        gone = row["workers_seen_at"]
        return _said(row, State.UNSERVED, f"has no worker: none was seen {_gone(gone)}", since=gone or row["since"])
    if row["state"] == "resting":
        trouble = f" because of {row['trouble']}" if row["trouble"] else ""
        until = row["resting_until"]
        return _said(row, State.RESTING, f"rests until {_at(until)}{trouble}", until=until)
    if isinstance(found, str):
        return _said(
            row, State.READY, f"is ready since {_at(row['since'])}; where its entry is cannot be said: {found}"
        )
    return _in_redis(row, found)


def _is_unpublished(row: Mapping[str, Any], found: Whereabouts | str) -> bool:
    """Whether what asks for the stage has not reached Redis."""
    is_published: bool | None = row.get("is_published")
    if is_published is not None or row["is_relayed"]:
        return is_published is False
    if not isinstance(found, str):
        return found.spot is Spot.MISSING
    # Redis does not say; but what came true after the last sign of a relay nobody can have published.
    seen_at, asked_at = row["relay_seen_at"], row["asked_at"]
    return seen_at is None or (asked_at is not None and bool(asked_at > seen_at + timedelta(seconds=INTERVAL)))


def _in_redis(row: Mapping[str, Any], found: Whereabouts) -> Reason:
    """Of a stage that was published, and that nothing in Postgres holds up."""
    reported = ", to commit what its service has reported" if row["is_reported"] else ""
    match found.spot:
        case Spot.HELD:
            then = f"and is about to run{reported}"
            if not found.is_alive:
                then = "which has died: another worker takes it over within the lease"
            return _said(row, State.HELD, f"was delivered to {found.consumer}, {then}", by=found.consumer)
        case Spot.PARKED:
            sentence = f"is due since {_at(row['since'])}: the next worker that is free takes it{reported}"
            return _said(row, State.QUEUED, sentence)
        case Spot.ABSENT:
            sentence = "was published, but has no entry in Redis: it ended just now, or was lost and is asked for again"
            return _said(row, State.LOST, sentence)
        case Spot.MISSING:
            return _said(row, State.LOST, "has no stream in Redis: the relay makes it again, and asks for the stage")
        case Spot.WAITING | Spot.BEYOND:
            others = "1 other" if found.ahead == 1 else f"about {found.ahead:,} others"
            place = f"is in its stream behind {others}" if found.ahead else "is next in its stream"
            if found.spot is Spot.BEYOND:
                place = f"is in its stream behind more than {LOOKED_AT:,} others"
            if row["max_running"] is not None and row["running"] >= row["max_running"]:
                return _said(row, State.LIMITED, f"{place}; as many run as may at once ({row['max_running']})")
            if found.is_rate_used_up:
                return _said(row, State.LIMITED, f"{place}; its rate of {row['rate']} is used up just now")
            workers = "1 worker" if row["workers"] == 1 else f"{row['workers']} workers"
            return _said(row, State.QUEUED, f"{place}, for {workers}{reported}")


def _said(
    row: Mapping[str, Any],
    state: State,
    sentence: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    by: str | None = None,
) -> Reason:
    """What holds up the stage of ``row``, since that became what it is unless ``since`` says otherwise."""
    return Reason(row["stage"], state, f"{row['stage']} {sentence}", since or row["since"], until, by)


def _at(moment: datetime | None) -> str:
    return "a time that is not known" if moment is None else rfc3339(moment)


def _gone(seen_at: datetime | None) -> str:
    return "within the last day" if seen_at is None else f"since {_at(seen_at)}"
