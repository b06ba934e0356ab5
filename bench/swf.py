"""A real job log through the provisioning example, with real processes, under fire from beginning to end.

Every few seconds the relay, a worker or Redis is killed with SIGKILL, or Redis is wiped. At the end
everything that was accepted must be terminal, nothing done twice, nothing oversold.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg

from examples.provisioning import invariants
from examples.provisioning.migrate import migrate
from tests.acceptance.deployment import ROOT, Deployment
from tests.acceptance.havoc import Havoc

from .bed import bed, megabytes

WORKERS = tuple(f"provisioning.{stage}" for stage in ("validate", "allocate", "notify", "launch"))

LEASE = timedelta(seconds=3)

PROGRESS = 10.0
"""Seconds between two lines of progress."""

POLL = 0.3
"""Seconds between two looks: each counts all tasks."""


def run(log: Path, *, limit: int | None, every: float, seed: int) -> int:
    """Submit ``log``, do harm every ``every`` seconds, print what became of it. Returns 5 if something is wrong."""
    with bed() as servers:
        deployment = servers.deployment("examples.provisioning", lease=LEASE)
        migrate(deployment.settings.database_url)
        havoc = Havoc(deployment, workers=WORKERS, seed=seed, valkey=servers.valkey)
        try:
            deployment.start(*WORKERS)
            began = time.monotonic()
            accepted = _travel(deployment, havoc, log, limit=limit, every=every)
            seconds = time.monotonic() - began
            deployment.revive()
            return _report(deployment, havoc, accepted, seconds)
        finally:
            deployment.close()


def _travel(deployment: Deployment, havoc: Havoc, log: Path, *, limit: int | None, every: float) -> int:
    """Submit and do harm until all is terminal; how many were accepted."""
    next_fault = next_line = began = time.monotonic()
    with _submitting(deployment, log, limit) as submitting:
        accepted: int | None = None
        while True:
            now = time.monotonic()
            finished = deployment.finished()
            if accepted is None and submitting.poll() is not None:
                accepted = _accepted(submitting)
            if accepted is not None and finished >= accepted:
                return accepted
            if now >= next_fault:
                havoc.strike()
                next_fault = now + every
            deployment.revive()
            if now >= next_line:
                known = "…" if accepted is None else f"{accepted:,}"
                memory = max(megabytes(one) for one in deployment.processes.values() if one.is_running)
                print(
                    f"{now - began:6.0f} s  {finished:,} of {known} terminal, {sum(havoc.struck.values())} faults,"
                    f" largest process {memory:.0f} MB",
                    flush=True,
                )
                next_line = now + PROGRESS
            time.sleep(POLL)


@contextmanager
def _submitting(deployment: Deployment, log: Path, limit: int | None) -> Iterator["subprocess.Popen[str]"]:
    """``python -m examples.provisioning.swf LOG | postroad submit provisioning -``."""
    command = [sys.executable, "-m", "examples.provisioning.swf", str(log.resolve())]
    command += [] if limit is None else ["--limit", str(limit)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as reading:
        assert reading.stdout is not None
        with deployment.submitter("provisioning", reading.stdout, "--patience", "300") as submitting:
            yield submitting


def _accepted(submitting: "subprocess.Popen[str]") -> int:
    out, err = submitting.communicate()
    tally = json.loads(out) if out else {}
    if submitting.returncode or tally["refused"]:
        raise SystemExit(f"submit ended with {submitting.returncode}: {out}{err[-2000:]}")
    return int(tally["accepted"])


def _report(deployment: Deployment, havoc: Havoc, accepted: int, seconds: float) -> int:
    statuses = deployment.statuses()
    terminal = deployment.finished()
    findings = json.loads(deployment.run("audit", "--json", seconds=600).out)
    audited = {one["name"]: one["violations"] for one in findings}
    with psycopg.connect(deployment.settings.database_url) as connection:
        example = dict(invariants.check(connection))
    ((events, attempts),) = deployment.query(
        "select (select count(*) from postroad.outbox), (select sum(attempts) from postroad.stage_run)"
    )
    print(f"accepted    {accepted:,}")
    print(
        f"terminal    {terminal:,} ({', '.join(f'{count:,} {status}' for status, count in sorted(statuses.items()))})"
    )
    reasons = deployment.query(
        "select regexp_replace(reason, '[0-9]+', 'N', 'g') as alike, count(*) from postroad.dead_letter"
        " group by alike order by count(*) desc"
    )
    for reason, count in reasons:
        print(f"            {count:,} failed: {reason}")
    print(f"audit       {len(audited)} invariants, {sum(audited.values())} violations")
    print(f"example     {len(example)} invariants, {sum(example.values())} violations")
    for name, violations in (audited | example).items():
        if violations:
            print(f"            {violations:,} violations: {name}")
    print(f"time        {seconds:,.0f} s, {accepted / seconds:,.0f} tasks/s")
    faults = ", ".join(f"{count} {name}" for name, count in sorted(havoc.struck.items()))
    print(f"faults      {sum(havoc.struck.values())}: {faults}")
    print(f"            {events:,} events, {attempts:,} attempts")
    is_well = accepted == terminal and not any((audited | example).values())
    return 0 if is_well else 5
