"""Our tables: whether the database is at the revision of this package, whole, and may be used by the processes."""

from collections.abc import Sequence

from ..core.database import REVISION, current_revision, metadata
from ..outbox.grant import FUNCTIONS, VIEWS
from .finding import Finding, error, listed, ok, unknown
from .patient import Patient


async def revision(patient: Patient) -> Sequence[Finding]:
    """Whether the database is migrated to what this version needs."""
    schema = patient.settings.schema
    async with patient.connection() as connection:
        current = await connection.run_sync(current_revision, schema)
    if current is None:
        return [
            error(f"schema {schema!r} has no tables of postroad", "run postroad migrate; or name the right --schema")
        ]
    if current < REVISION:
        return [
            error(f"schema {schema!r} is at revision {current}, this version needs {REVISION}", "run postroad migrate")
        ]
    if current > REVISION:
        return [
            error(
                f"schema {schema!r} is at revision {current}, this version knows {REVISION}",
                "a newer postroad has migrated it: upgrade this one, and every process",
            )
        ]
    return [ok(f"schema {schema!r} is at revision {current}")]


async def whole(patient: Patient) -> Sequence[Finding]:
    """Whether a migration, or somebody's hand, left something half done."""
    schema = patient.settings.schema
    there: dict[str, set[str]] = {}
    for row in await patient.rows("columns", schema=schema):
        there.setdefault(row.table, set()).add(row.column)
    if not there:
        return [unknown("there is no table of ours", "see the check revision")]
    lacking = [
        name if name not in there else f"{name}.{column.name}"
        for table in metadata.tables.values()
        for name in [table.name]
        for column in table.columns
        if name not in there or column.name not in there[name]
    ]
    lacking += [view for view in VIEWS if view not in there]
    functions = {row.name for row in await patient.rows("functions", schema=schema)}
    lacking += [f"{name}()" for name in (*FUNCTIONS, "outbox_slot", "wake_relay") if name not in functions]
    findings = []
    if lacking:
        findings.append(
            error(
                f"{schema} lacks {listed(list(dict.fromkeys(lacking)))}",
                "run postroad migrate; if it is at its newest revision, restore them from a backup or a fresh schema",
            )
        )
    for row in await patient.rows("faulty_objects", schema=schema):
        mend = {
            "index": f"run reindex index concurrently {schema}.{row.name}",
            "constraint": "run alter table … validate constraint",
            "trigger": "run alter table … enable trigger: without it the relay finds new events only once a second",
        }
        findings.append(error(f"the {row.what} {row.name} does not work", mend[row.what]))
    return findings or [ok(f"{len(metadata.tables)} tables and their functions are there")]


async def grants(patient: Patient) -> Sequence[Finding]:
    """Whether the roles of the processes may do what they must."""
    lacking = await patient.rows("lacking_grants", schema=patient.settings.schema)
    return [
        error(
            f"role {row.role}, as which the {row.part} logs in, lacks {row.lacking} on {row.what}",
            f"grant {row.lacking} on {_object(row.what, patient.settings.schema)} to {row.role}",
        )
        for row in lacking
    ] or [ok("the roles of the processes have the rights that they need")]


def _object(what: str, schema: str) -> str:
    kind, _, name = what.rpartition(" ")
    return what if kind == "schema" else f"{kind} {schema}.{name}".strip()
