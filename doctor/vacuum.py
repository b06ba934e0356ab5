"""What becomes of dead rows: vacuum, wraparound, bloat, and what our tables take on disk."""

from collections.abc import Sequence

from .finding import Finding, error, listed, many, ok, told, told_bytes, warning
from .patient import Patient

MANY_DEAD, LAG = 100_000, 2
"""Dead rows of a table from which it matters, and how many times what autovacuum waits for they must be."""

XIDS, XIDS_FAR = 500_000_000, 1_200_000_000
"""Transactions since the oldest was frozen. Autovacuum sets to work at 200 million whatever is set; beyond 500
something holds it up. At 1.6 thousand million it stops being considerate, at 2.1 Postgres stops taking writes."""

BLOATED, LARGE = 3.0, 256 << 20
"""How many times the room that the rows need a file may take, and the bytes from which that matters."""


async def autovacuum(patient: Patient) -> Sequence[Finding]:
    """Whether autovacuum is on, and keeps up with our tables."""
    settings = await patient.server_settings()
    findings = [
        error(f"{name} is off: dead rows are never removed, and our tables grow and grow", f"set {name} to on")
        for name in ("autovacuum", "track_counts")
        if settings[name] == "off"
    ]
    schema = patient.settings.schema
    rows = await patient.rows("vacuum", schema=schema)
    for row in rows:
        if row.is_off:
            findings.append(
                warning(
                    f"autovacuum is off for {schema}.{row.table}",
                    f"alter table {schema}.{row.table} reset (autovacuum_enabled)",
                )
            )
        if row.dead >= MANY_DEAD and row.dead > LAG * row.due:
            last = "never" if row.since is None else f"{told(row.since)} ago"
            findings.append(
                warning(
                    f"{schema}.{row.table} has {row.dead:,} dead rows; its last vacuum was {last}",
                    f"see who holds them (the check horizon); run vacuum {schema}.{row.table}; raise"
                    " autovacuum_vacuum_cost_limit",
                )
            )
    return findings or [ok(f"our tables have {many(sum(row.dead for row in rows), 'dead row')}")]


async def wraparound(patient: Patient) -> Sequence[Finding]:
    """How far this database is from the end of its transaction ids."""
    row = await patient.row("wraparound")
    worst = max(row.xids, row.multixacts)
    saw = f"the oldest row was frozen {row.xids:,} transactions ago ({row.multixacts:,} multixacts)"
    if worst < XIDS:
        return [ok(saw)]
    return [
        (error if worst >= XIDS_FAR else warning)(
            saw, "see who holds vacuum up (the check horizon), then run vacuum (freeze) in this database"
        )
    ]


async def bloat(patient: Patient) -> Sequence[Finding]:
    """Tables whose files are mostly air."""
    schema = patient.settings.schema
    rows = await patient.rows("bloat", schema=schema, at_least=LARGE)
    return [
        warning(
            f"{schema}.{row.table} takes {told_bytes(row.bytes)}, its rows need about {told_bytes(row.needed)}",
            f"see autovacuum; then, in a quiet hour, vacuum full {schema}.{row.table} (it locks), or pg_repack",
        )
        for row in rows
        if row.bytes > BLOATED * row.needed
    ] or [ok(f"no table of {told_bytes(LARGE)} or more is bloated")]


async def disk(patient: Patient) -> Sequence[Finding]:
    """What our tables take. How much is left of the disk only its own machine knows."""
    rows = await patient.rows("sizes", schema=patient.settings.schema)
    largest = [f"{row.table} {told_bytes(row.bytes)}" for row in rows[:3]]
    return [ok(f"our tables take {told_bytes(sum(row.bytes for row in rows))}: {listed(largest)}")]
