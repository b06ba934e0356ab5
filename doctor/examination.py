"""Make the checks one after another: each within its time, and none in the way of the others."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Flag, auto

import redis.exceptions as redis
from psycopg.errors import InsufficientPrivilege, InvalidSchemaName, QueryCanceled, UndefinedColumn, UndefinedTable
from sqlalchemy.exc import DBAPIError

from ..core.database import lost_connection
from ..core.errors import first_line
from .finding import Finding, Level, ok, unknown
from .patient import PATIENCE, Patient

TIMEOUT = PATIENCE + 1
"""Seconds that a check may take. Postgres ends its statement before, and says so."""


class Needs(Flag):
    """What a check asks."""

    NOTHING = 0
    POSTGRES = auto()
    REDIS = auto()
    BOTH = POSTGRES | REDIS


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at. ``name`` is unique, and documented in docs/doctor.md; ``group`` is the heading over it."""

    name: str
    group: str
    needs: Needs
    run: Callable[[Patient], Awaitable[Sequence[Finding]]]


@dataclass(frozen=True, slots=True)
class Result:
    """What a check came to. ``seconds`` is how long it took."""

    check: Check
    findings: Sequence[Finding]
    seconds: float

    @property
    def level(self) -> Level:
        """That of the worst finding."""
        return max((finding.level for finding in self.findings), key=lambda level: level.rank)


async def examine(patient: Patient, checks: Iterable[Check]) -> list[Result]:
    """Make ``checks``, in their order, and never raise for what they meet.

    Of a server that a check finds away nobody asks again; of Redis that is so when no shard answers.
    """
    away = Needs.NOTHING
    results = []
    for check in checks:
        started = time.monotonic()
        if check.needs & away:
            findings: Sequence[Finding] = [unknown(f"{_name(check.needs & away)} does not answer", "see above")]
        else:
            findings, lost = await _made(check, patient)
            away |= lost
        results.append(Result(check, findings, time.monotonic() - started))
    return results


def is_away(result: Result) -> bool:
    """True if the check was to see whether a server answers, and it does not."""
    return result.check.name in _ANSWERS and result.level is Level.ERROR


_ANSWERS = {"postgres-answers": Needs.POSTGRES, "redis-answers": Needs.REDIS}


async def _made(check: Check, patient: Patient) -> tuple[Sequence[Finding], Needs]:
    """What a check found, and the servers that turned out to be away."""
    nobody = Needs.NOTHING
    try:
        async with asyncio.timeout(TIMEOUT):
            findings = await check.run(patient)
        lost = _ANSWERS.get(check.name, nobody)
        is_lost = bool(lost) and any(finding.level is Level.ERROR for finding in findings)
        # A shard of a cluster that is away leaves the others.
        if lost is Needs.REDIS and len(patient.away) < len(patient.keys.shards):
            is_lost = False
        return findings or [ok("nothing to see")], lost if is_lost else nobody
    except Exception as problem:  # whatever it is: the others are to be made
        return [_unmade(problem)], nobody


def _unmade(problem: Exception) -> Finding:
    """Why a check could not be made."""
    cause = (problem.orig if isinstance(problem, DBAPIError) else None) or problem
    if isinstance(cause, InsufficientPrivilege):
        return unknown(
            f"this role may not look: {first_line(cause)}",
            "log in as the role that migrated, or grant usage on the schema, and select on all tables in it",
        )
    if isinstance(cause, redis.NoPermissionError):
        return unknown(
            f"this user of Redis may not look: {first_line(cause)}",
            "allow it with ACL SETUSER, as +info or +config|get",
        )
    if isinstance(cause, InvalidSchemaName | UndefinedTable | UndefinedColumn):
        return unknown("the tables are not those of this version", "see the check revision")
    if isinstance(cause, QueryCanceled | TimeoutError):
        return unknown(f"it took longer than {PATIENCE:.0f} s", "look again when there is less to do")
    if isinstance(problem, redis.ConnectionError | redis.TimeoutError | OSError) or lost_connection(problem):
        return unknown(f"the server went away: {first_line(cause)}", "look again when it is back")
    return unknown(
        f"{type(cause).__name__}: {first_line(cause)}", "look at that server by hand; if it stays, report it"
    )


def _name(needs: Needs) -> str:
    return " and ".join(
        word for word, server in (("Postgres", Needs.POSTGRES), ("Redis", Needs.REDIS)) if server in needs
    )
