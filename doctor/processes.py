"""The processes of the deployment, as they say of themselves in the registry."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Row

from ..outbox.process import INTERVAL, Role
from .finding import Finding, error, listed, many, ok, told, unknown, warning
from .patient import Patient

SILENCE = timedelta(seconds=3 * INTERVAL)
"""Who has not written for so long is dead, hangs, or is cut off from Postgres: two writes may be late."""

STARTING = 30.0
"""Seconds that a relay has to take the lead: its predecessor's session may have to be ended first."""

RECENT = 3600.0
"""Seconds: a death before that is history, and told only where all is well."""

SCHEDULE_LATE = timedelta(minutes=1)
"""A relay looks for what is due once a second or so."""


async def alive(patient: Patient) -> list[Row[Any]]:
    """The processes that live, the oldest first."""
    return [row for row in await patient.rows("processes", silence=SILENCE) if row.lives]


async def stages(patient: Patient) -> Sequence[Row[Any]]:
    """The stages in force."""
    return await patient.rows("stages")


async def relay(patient: Patient) -> Sequence[Finding]:
    """Whether a relay lives and one works."""
    relays = [process for process in await alive(patient) if process.role == Role.RELAY]
    leading = [process.process for process in relays if process.is_leading]
    is_held = (await patient.row("relay_lock")).is_held
    if len(leading) > 1:
        return [
            error(
                f"{len(leading)} relays say that they work: {listed(leading)}",
                "all but one were cut off or stopped in their tracks: end those; nothing is published twice meanwhile",
            )
        ]
    if leading:
        return [ok(f"{leading[0]} works" + (f", {len(relays) - 1} wait to take over" if len(relays) > 1 else ""))]
    hung = [
        row
        for row in await patient.rows("processes", silence=SILENCE)
        if row.role == Role.RELAY and row.is_leading and not row.lives and row.stopped_at is None
    ]
    if is_held and hung:
        return [
            error(
                f"{hung[-1].process} has the lead, and was not heard of for {told(hung[-1].seen)}: it hangs",
                "start another relay, which ends that session after the lease and 5 s; kill this one",
            )
        ]
    if not relays and is_held:
        return [
            unknown(
                "a relay works, and is not in the registry",
                "see the check grants: it may not write to the table process; or it is of an older version",
            )
        ]
    if not relays:
        return [
            error(
                "no relay lives: what is accepted does not reach its stages", "start postroad relay, better two of them"
            )
        ]
    if max(one.started for one in relays) < STARTING:
        return [ok("a relay has just been started")]
    return [
        error(
            f"of {many(len(relays), 'relay')} none works: they wait for whoever has the lead",
            "see their logs; select pg_terminate_backend(pid) for the session that holds the advisory lock"
            if is_held
            else "see their logs: one that cannot reach Redis or Postgres says so",
        )
    ]


async def intake(patient: Patient) -> Sequence[Finding]:
    """Whether the door is open."""
    count = sum(process.role == Role.INTAKE for process in await alive(patient))
    if count:
        return [ok(f"{count} processes of the intake" if count > 1 else "a process of the intake")]
    return [
        warning(
            "no intake lives: nobody can submit over HTTP",
            "start postroad serve; nothing is wrong if tasks are only submitted in Python or SQL",
        )
    ]


async def died(patient: Patient) -> Sequence[Finding]:
    """Processes that were not heard of any more, and had not said that they stop."""
    silent = [
        row for row in await patient.rows("processes", silence=SILENCE) if not row.lives and row.stopped_at is None
    ]
    recent = [row for row in silent if row.seen < RECENT]
    if not recent:
        earlier = f"; {len(silent)} did earlier today" if silent else ""
        return [ok(f"no process died in the last hour{earlier}")]
    return [
        warning(
            f"{row.role} {row.process} was not heard of for {told(row.seen)}, and had not said that it stops",
            "see its log and that of its machine: killed, out of memory, hung, or cut off from Postgres",
        )
        for row in recent
    ]


async def schedules(patient: Patient) -> Sequence[Finding]:
    """Whether schedules are followed."""
    late = await patient.rows("schedules", late=SCHEDULE_LATE)
    if not late:
        return [ok("no schedule is late")]
    return [
        error(
            f"{many(len(late), 'schedule')} late: {listed([f'{row.schedule} by {told(row.seconds)}' for row in late])}",
            "the relay submits them: see the check relay, and its log",
        )
    ]
