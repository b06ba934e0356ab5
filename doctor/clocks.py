"""Clocks: whether this machine and the servers agree on the time.

Nothing that postroad decides compares two clocks. Postgres' says when tasks, schedules and retries are due, and dates
the journeys; Redis' says how long parked entries rest and what a rate grants; a worker's own dates the calls of
services that it signs, spans and log lines.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from .finding import Finding, error, ok, told, warning
from .patient import Patient

NOTICEABLE = 2.0
"""Seconds: beyond that, logs, traces and journeys can no longer be laid side by side."""

TOO_FAR = 60.0
"""Seconds: services refuse calls whose signature is five minutes off, and two clocks may each be off the other way."""


async def postgres(patient: Patient) -> Sequence[Finding]:
    """How far the clock of Postgres is from this machine's."""

    async def ask() -> float:
        async with patient.connection() as connection:
            return float((await connection.exec_driver_sql(patient.statement("clock"))).scalar_one())

    return [await _compared("Postgres", patient.clock, ask)]


async def redis(patient: Patient) -> Sequence[Finding]:
    """How far the clocks of Redis are from this machine's."""
    findings = []
    for node in await patient.nodes():

        async def ask(client: Any = node.client) -> float:
            seconds, microseconds = await client.time()
            return float(seconds) + float(microseconds) / 1e6

        name = f"Redis (shards {node.shards[0]}…)" if patient.is_cluster else "Redis"
        findings.append(await _compared(name, patient.clock, ask))
    return findings


async def _compared(server: str, clock: Callable[[], float], ask: Callable[[], Awaitable[float]]) -> Finding:
    """Ask twice: the first answer may wait for a connection."""
    await ask()
    before, started = clock(), time.monotonic()
    theirs = await ask()
    took = time.monotonic() - started
    offset = theirs - (before + took / 2)
    # So much at least: the answer may have been made at either end of the wait.
    skew = max(0.0, abs(offset) - took / 2)
    if skew < NOTICEABLE:
        return ok(f"the clock of {server} is within {max(skew, 0.1):.1f} s of this machine's")
    saw = f"the clock of {server} is {told(skew)} {'ahead of' if offset > 0 else 'behind'} this machine's"
    make = error if skew >= TOO_FAR else warning
    return make(saw, "let both follow a time server (chronyc tracking, timedatectl), and step neither while it works")
