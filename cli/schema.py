"""``postroad deploy`` and ``audit``: what is declared in the tables, and whether it holds."""

import asyncio
import json
from dataclasses import asdict
from typing import Any

import click

from ..outbox.audit import Finding, audit
from ..stages.deploy import Deployment, deploy
from .app import load_app
from .connect import connection
from .options import options, read_settings
from .tables import plain


@click.command("deploy")
@click.argument("app_name", metavar="[APP]", required=False)
@options("app", "database_url", "schema")
@click.option("--force", is_flag=True, help="Drop the work of tasks at stages that the new graphs do not have.")
def deploy_command(app_name: str | None, force: bool, **given: Any) -> None:
    """Record the app's pipelines in Postgres: from now on tasks go by these graphs.

    Stages that are ready by a changed graph are asked for. Graphs that would strand tasks, at stages that they do not
    have, are refused (exit code 4) unless forced; then nothing is changed in any pipeline.
    """
    settings = read_settings(given | {"app": app_name or given["app"]})
    pipelines = load_app(settings.app)

    async def run() -> list[Deployment]:
        async with connection(settings) as opened:
            return [await deploy(opened, pipeline, settings.schema, force=force) for pipeline in pipelines]

    for deployment in asyncio.run(run()):
        click.echo(f"{deployment.pipeline}: version {deployment.version} ({deployment.change})", err=True)
        for left in deployment.dropped:
            click.echo(f"{deployment.pipeline}: dropped what was at stage {left}", err=True)


@click.command("audit")
@options("database_url", "schema")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def audit_command(as_json: bool, **given: Any) -> None:
    """Count the violations of every invariant, and name some of the tasks; exit code 5 if there are any.

    A line for each: the violations, the promise that would be broken (docs/guarantees.md), the name of the check, and
    what must hold. Each is one SQL statement, run on one snapshot of the database, so work may go on meanwhile.
    """
    settings = read_settings(given)

    async def run() -> list[Finding]:
        async with connection(settings, isolation="REPEATABLE READ") as opened:
            return await audit(opened, settings.schema)

    findings = asyncio.run(run())
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], default=plain))
    else:
        for finding in findings:
            click.echo(f"{finding.violations:>9,}  {finding.number}  {finding.name:28}  {finding.promise}")
            for task_id in finding.tasks:
                click.echo(f"{'':14}{task_id}")
    if any(finding.violations for finding in findings):
        raise click.exceptions.Exit(5)
