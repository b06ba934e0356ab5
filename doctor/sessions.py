"""Sessions of Postgres, whoever's, that hold up others: what they have locked, and what vacuum may not remove."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Row

from .finding import Finding, error, many, ok, told, told_bytes, unknown, warning
from .patient import Patient

IDLE = timedelta(minutes=5)
"""A stage that calls a service may take five minutes (300 s is the longest); no transaction need be idle for longer."""

FORGOTTEN = timedelta(hours=1)
"""Nobody comes back to a transaction that has been idle for so long, and its locks keep leaves from being emptied."""

LONG = timedelta(minutes=30)
"""A dump or a report takes some minutes. For as long as it does no dead row is removed."""

PREPARED = timedelta(minutes=5)
"""What coordinates two-phase commits ends them within seconds; what was forgotten survives even a restart."""

HELD, HELD_FAR = 1_000_000, 50_000_000
"""Transactions. A task costs a handful; with the dead rows of a million, statements on hot tables grow slower. Fifty
million are hours of full load, or a slot that was forgotten."""

SLOT_BYTES = 10 << 30
"""Of the write-ahead log that a slot nobody reads may keep: then the disk is on its way to be full."""


async def idle(patient: Patient) -> Sequence[Finding]:
    """Transactions in which nothing happens."""
    rows = await patient.rows("idle_transactions", at_least=IDLE)
    findings = [
        (error if row.seconds >= FORGOTTEN.total_seconds() else warning)(
            f"{_who(row)} has been idle in a transaction for {told(row.seconds)}",
            f"let that program commit or roll back; or select pg_terminate_backend({row.pid})",
        )
        for row in rows
    ]
    return [*findings, *await _hidden(patient)] or [
        ok(f"no transaction has been idle for {told(IDLE.total_seconds())}")
    ]


async def long(patient: Patient) -> Sequence[Finding]:
    """Transactions that work for long."""
    rows = await patient.rows("long_transactions", at_least=LONG)
    return [
        warning(
            f"{_who(row)} has worked in one transaction for {told(row.seconds)}: {row.query}",
            f"let it end, or select pg_cancel_backend({row.pid}); run long reports on a replica",
        )
        for row in rows
    ] or [ok(f"no transaction has worked for {told(LONG.total_seconds())}")]


async def prepared(patient: Patient) -> Sequence[Finding]:
    """Transactions that were prepared and forgotten."""
    rows = await patient.rows("prepared_transactions", at_least=PREPARED)
    return [
        error(
            f"the transaction {row.name!r} of {row.role} was prepared {told(row.seconds)} ago, and has not ended",
            f"ask its coordinator, then commit prepared or rollback prepared '{row.name}'",
        )
        for row in rows
    ] or [ok("none is left prepared")]


async def horizon(patient: Patient) -> Sequence[Finding]:
    """Who keeps dead rows from being removed."""
    rows = await patient.rows("horizon")
    held = [row for row in rows if row.age >= HELD]
    return [
        (error if row.age >= HELD_FAR else warning)(
            f"{row.holder} keeps the dead rows of the last {row.age:,} transactions",
            "end the session or transaction; drop the slot if nobody reads it (pg_drop_replication_slot)",
        )
        for row in held
    ] or [
        ok(f"nobody keeps the dead rows of more than {many(max([row.age for row in rows], default=0), 'transaction')}")
    ]


async def slots(patient: Patient) -> Sequence[Finding]:
    """Replication slots that nobody reads."""
    findings = []
    for row in await patient.rows("replication_slots"):
        keeps = "has lost its place already" if row.is_lost else f"keeps {told_bytes(row.bytes or 0)} of the log"
        make = error if row.is_lost or (row.bytes or 0) >= SLOT_BYTES else warning
        findings.append(
            make(
                f"nobody reads the replication slot {row.name}, which {keeps}",
                f"start who reads it, or select pg_drop_replication_slot('{row.name}')",
            )
        )
    return findings or [ok("every replication slot is read")]


async def _hidden(patient: Patient) -> list[Finding]:
    hidden = (await patient.row("hidden_sessions")).hidden
    if not hidden:
        return []
    return [
        unknown(
            f"what {many(hidden, 'session')} of other roles do cannot be seen",
            "grant pg_read_all_stats to the role of postroad doctor",
        )
    ]


def _who(row: Row[Any]) -> str:
    return f"session {row.pid} of {row.role} ({row.application or 'no name'}, database {row.database})"
