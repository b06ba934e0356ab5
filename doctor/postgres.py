"""Postgres as a server: that it answers, takes writes, keeps them, and has connections enough."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from ..core.database import connect_psycopg
from ..core.errors import SettingsError, first_line
from ..core.settings import masked
from ..outbox.process import Role
from .finding import Finding, error, many, ok, told, warning
from .patient import PATIENCE, Patient
from .processes import alive

RELAY_CONNECTIONS = 4
"""Those of a relay, however large the pools are: the relay itself, the sweep, the schedules, the registry."""

FEW, SCARCE = 0.1, 3
"""The part of all connections, and their number, below which one more process may get none."""

SHORT_STATEMENT = 10.0
"""Seconds: a rebuild, a count of a million open tasks, or a batch, on a busy server, take some of them."""

SHORT_TRANSACTION = 30.0
"""Seconds: the timeout of a stage unless it has another; a handler's transaction may be idle for as long."""


async def answers(patient: Patient) -> Sequence[Finding]:
    """Whether we can log in."""
    where = f"Postgres at {masked(patient.settings.database_url)}"
    try:
        async with asyncio.timeout(PATIENCE):
            await patient.server_settings()
    except Exception as problem:
        return [error(f"{where} does not answer: {_reason(problem)}", "start it, or correct DATABASE_URL")]
    return [ok(f"{where} answers")]


async def writable(patient: Patient) -> Sequence[Finding]:
    """Whether it takes writes."""
    if (await patient.row("is_replica")).is_replica:
        return [
            error(
                "this server is a replica: it takes no writes",
                "name the primary in DATABASE_URL; or all servers, with target_session_attrs=read-write",
            )
        ]
    if (await patient.server_settings())["default_transaction_read_only"] == "on":
        return [
            error(
                "transactions are read-only by default: nothing is accepted, and no outcome committed",
                "alter system, database or role: reset default_transaction_read_only",
            )
        ]
    return [ok("it takes writes")]


async def durability(patient: Patient) -> Sequence[Finding]:
    """Whether a commit that was answered survives a crash."""
    settings = await patient.server_settings()
    findings = []
    if settings["fsync"] == "off":
        findings.append(error("fsync is off: a power cut may destroy the database", "set fsync to on"))
    if settings["full_page_writes"] == "off":
        findings.append(
            warning(
                "full_page_writes is off: a power cut may tear pages",
                "set it to on, unless the file system copies on write",
            )
        )
    if settings["synchronous_commit"] == "off":
        findings.append(
            error(
                "synchronous_commit is off: a crash loses tasks that were answered with 202",
                "set synchronous_commit to on for the role of postroad",
            )
        )
    return findings or [ok(f"fsync is on, synchronous_commit is {settings['synchronous_commit']}")]


async def role(patient: Patient) -> Sequence[Finding]:
    """Whether what is set on our role ends connections or statements that we need."""
    settings = await patient.server_settings()

    def seconds(name: str) -> float:
        return int(settings.get(name, "0")) / 1000

    findings = []
    if 0 < seconds("statement_timeout") < SHORT_STATEMENT:
        findings.append(
            warning(
                f"statement_timeout is {told(seconds('statement_timeout'))}: large batches and counts may not end",
                f"set it to {SHORT_STATEMENT:.0f} s or more for this role",
            )
        )
    for name in ("idle_in_transaction_session_timeout", "transaction_timeout"):
        if 0 < seconds(name) < SHORT_TRANSACTION:
            findings.append(
                warning(
                    f"{name} is {told(seconds(name))}: handlers that hold their transaction for longer fail",
                    "set it to the longest timeout of a stage, or more",
                )
            )
    if seconds("idle_session_timeout"):
        findings.append(
            warning(
                f"idle_session_timeout is {told(seconds('idle_session_timeout'))}: the intake answers 503 after it",
                "alter role … set idle_session_timeout = 0",
            )
        )
    isolation = settings["default_transaction_isolation"]
    return findings or [ok(f"its timeouts leave us alone; isolation is {isolation}, ours always read committed")]


async def connections(patient: Patient) -> Sequence[Finding]:
    """Whether there are connections enough, now and if all processes were busy at once."""
    row = await patient.row("connections")
    bounds = [
        ("Postgres", row.slots, row.used),
        ("this database", row.database_limit, row.database_used),
        ("this role", row.role_limit, row.role_used),
    ]
    where, total, used = min((one for one in bounds if one[1] >= 0), key=lambda one: one[1] - one[2])
    free = total - used
    saw = f"{free} of the {total} connections of {where} are free"
    raise_it = "raise max_connections (or the limit), lower POSTROAD_POOL, or put a pooler before Postgres"
    findings = []
    if free <= SCARCE:
        findings.append(error(f"{saw}: the next process gets none", raise_it))
    elif free < FEW * total:
        findings.append(warning(saw, raise_it))
    processes = await alive(patient)
    relays = sum(process.role == Role.RELAY for process in processes)
    need = relays * RELAY_CONNECTIONS + (len(processes) - relays) * patient.settings.pool
    if need > total and not patient.settings.direct_url:
        findings.append(
            warning(
                f"{many(len(processes), 'process')} may take {need} of {total} connections,"
                f" by a pool of {patient.settings.pool}",
                raise_it,
            )
        )
    return findings or [ok(f"{saw}; the processes that run take {need} at most")]


async def pooler(patient: Patient) -> Sequence[Finding]:
    """Whether the relay would get a session of Postgres that lasts, by the settings that we were given."""
    settings = patient.settings
    direct = replace(settings, database_url=settings.direct_url or settings.database_url)
    try:
        connection = await connect_psycopg(direct, application="postroad doctor")
    except SettingsError as problem:
        return [error(f"no relay can work here: {problem}", "set DIRECT_URL for postroad relay to Postgres itself")]
    await connection.close()
    return [ok("the relay gets a session of its own")]


def _reason(problem: Exception) -> str:
    return f"nothing came within {PATIENCE:.0f} s" if isinstance(problem, TimeoutError) else first_line(problem)
