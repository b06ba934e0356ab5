"""``postroad up``: everything in one terminal."""

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Any

import click

from .options import options, read_settings
from .stack import StackError, stack
from .supervisor import Log


@click.command("up")
@click.argument("app_name", metavar="[APP]", required=False)
@options("app", "database_url", "redis_url", "schema", "prefix", "lease", "grace", "host", "port", "workers", "metrics")
@click.option("--before", metavar="COMMAND", help="Run this after the migration: the app's own migration, say.")
@click.option(
    "--data", metavar="FOLDER", default=".postroad", show_default=True, type=click.Path(path_type=Path),
    help="Where embedded servers keep their data.",
)  # fmt: skip
def up_command(app_name: str | None, before: str | None, data: Path, **given: Any) -> None:
    """Run everything in one terminal: servers, migration, intake, relay and one process for each stage.

    Servers that DATABASE_URL and REDIS_URL do not name are embedded ones, whose data stay in .postroad. Ctrl-C ends
    it all, in order; a second one at once.
    """
    settings = read_settings(given | {"app": app_name or given["app"]})

    async def run() -> None:
        async with stack(settings, folder=data, log=Log(), before=before) as running:
            click.echo(f"intake    {running.url}/v1/tasks", err=True)
            click.echo(f"dashboard {running.url}/ui/", err=True)
            click.echo(f"stages    {', '.join(stage.full_name for stage in running.stages)}", err=True)
            click.echo("Ctrl-C stops it all.", err=True)
            await running.supervisor.failed.wait()
            raise StackError("a process could not be kept running; its last lines say why")

    async def run_until_told() -> None:
        loop = asyncio.get_running_loop()
        running = asyncio.create_task(run())

        def stop() -> None:
            for number in signals:
                loop.remove_signal_handler(number)  # the next one ends us at once
            click.echo("stopping", err=True)
            running.cancel()

        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, stop)
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(run_until_told())
