"""``postroad doctor``: look the deployment over, and say what to do."""

import asyncio
import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import click

from ..doctor.checks import CHECKS
from ..doctor.examination import Result, examine, is_away
from ..doctor.finding import Finding, Level, many
from ..doctor.patient import Patient
from .options import options, read_settings

FAILED, AWAY = 5, 69
"""The exit codes: something is broken (or, with --strict, not as it should be); a server does not answer."""


@click.command("doctor")
@options("database_url", "direct_url", "redis_url", "schema", "prefix", "lease", "retention")
@click.option("--strict", is_flag=True, help="Warnings, and checks that could not be made, are failures too.")
@click.option("--verbose", "-v", is_flag=True, help="Tell of what is well, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def doctor_command(strict: bool, verbose: bool, as_json: bool, **given: Any) -> None:
    """Look the deployment over, servers, tables, processes and work, and say what to do.

    Changes nothing, and costs little. Give it the settings of the processes. Exit codes: 0 ok, 5 an error (with
    --strict, or a warning), 69 a server does not answer. docs/doctor.md explains each check.
    """
    settings = read_settings(given)

    async def run() -> list[Result]:
        patient = Patient(settings)
        try:
            return await examine(patient, CHECKS)
        finally:
            await patient.aclose()

    results = asyncio.run(run())
    if as_json:
        click.echo(json.dumps(document(results)))
    else:
        for line in lines(results, verbose=verbose):
            click.echo(line)
    if code := exit_code(results, strict=strict):
        raise click.exceptions.Exit(code)


def exit_code(results: Sequence[Result], *, strict: bool) -> int:
    """What ``results`` come to for whoever asks a program."""
    if any(map(is_away, results)):
        return AWAY
    worst = max((result.level for result in results), key=lambda level: level.rank)
    return FAILED if worst is Level.ERROR or (strict and worst is not Level.OK) else 0


def document(results: Sequence[Result]) -> dict[str, Any]:
    """``results`` for programs."""
    return {
        "status": max((result.level for result in results), key=lambda level: level.rank),
        "checks": [
            {
                "check": result.check.name,
                "group": result.check.group,
                "status": result.level,
                "seconds": round(result.seconds, 3),
                "findings": [
                    {"status": finding.level, "saw": finding.saw, "do": finding.do or None}
                    for finding in result.findings
                ],
            }
            for result in results
        ],
    }


def lines(results: Sequence[Result], *, verbose: bool) -> list[str]:
    """``results`` for people: by group, with what is to be said; all that was seen if ``verbose``.

    Checks of a group that could not be made for one reason are one line.
    """
    told: list[str] = []
    for group, of_group in groupby(results, key=lambda result: result.check.group):
        members = list(of_group)
        well = sum(result.level is Level.OK for result in members)
        told.append(f"{group}: {well} of {many(len(members), 'check')} ok")
        together: dict[Finding, list[str]] = {}
        for result in members:
            for finding in result.findings:
                if verbose or finding.level is not Level.OK:
                    together.setdefault(finding, []).append(result.check.name)
        for finding, names in together.items():
            told += _told(names[0] if len(names) == 1 else many(len(names), "check"), finding)
    counts = {level: sum(result.level is level for result in results) for level in Level}
    summary = ", ".join(
        many(count, level) if level in (Level.WARNING, Level.ERROR) else f"{count} {level}"
        for level, count in counts.items()
        if count
    )
    return [*told, "", f"{many(len(results), 'check')}: {summary}"]


_WIDTH = max(len(check.name) for check in CHECKS)


def _told(name: str, finding: Finding) -> list[str]:
    line = f"  {finding.level:<7}  {name:<{_WIDTH}}  {finding.saw}"
    return [line] + ([f"{'':<{_WIDTH + 13}}→ {finding.do}"] if finding.do else [])
