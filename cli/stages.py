"""``postroad stage``: run stages, test them, list them, set their limits."""

import asyncio
import importlib
from collections.abc import Sequence
from typing import Any

import click

from ..core.errors import DeclarationError
from ..core.rate import OFF, Rate
from ..intake.limits import list_stages, set_limits
from .connect import connection
from .options import options, read_settings, who_and_why
from .tables import print_rows

_RUN = "run"

_ELSEWHERE = {_RUN: ("processes", "run_command"), "test": ("conformance", "test_command")}
"""Those that take long to import, which the others do without."""


class _StageCommands(click.Group):
    """Runs the stages that are named, unless the first word is that of a command."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in {*self.commands, *_ELSEWHERE, *context.help_option_names}:
            args = [_RUN, *args]
        return super().parse_args(context, args)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in _ELSEWHERE:
            module, attribute = _ELSEWHERE[name]
            command: click.Command = getattr(importlib.import_module(f"..{module}", __name__), attribute)
            return command
        return super().get_command(context, name)

    def list_commands(self, context: click.Context) -> list[str]:
        return [*_ELSEWHERE, *super().list_commands(context)]


@click.group("stage", cls=_StageCommands)
def stage_command() -> None:
    """Run stages, test their services, list them, set their limits.

    postroad stage PIPELINE.STAGE... and postroad stage --all are short for postroad stage run.
    """


@stage_command.command("list")
@options("database_url", "schema")
@click.option("--pipeline", help="Only those of this pipeline.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def list_(pipeline: str | None, as_json: bool, **given: Any) -> None:
    """List the stages in force, with the limits that hold for them, and the trouble that they have.

    limits_set is true where people have set some of them. A stage whose service is away rests until a moment; then one
    attempt is let through to see.
    """
    settings = read_settings(given)

    async def run() -> Sequence[dict[str, Any]]:
        async with connection(settings) as opened:
            return await list_stages(opened, settings.schema, pipeline=pipeline)

    columns = [
        "pipeline",
        "stage",
        "after",
        "paused",
        "rate",
        "burst",
        "max_running",
        "limits_set",
        "priorities",
        "resting_until",
        "trouble",
    ]
    print_rows(asyncio.run(run()), columns, as_json=as_json)


@stage_command.command("set")
@click.argument("stage", metavar="PIPELINE.STAGE")
@options("database_url", "schema")
@click.option("--rate", help="Attempts that may begin, as 200/s, 30/m, 1000/h or 10/d; off: as many as there are.")
@click.option("--burst", type=click.IntRange(1, 1_000_000), help="So many at once after a rest.")
@click.option("--max-running", type=click.IntRange(1, 1_000_000), help="So many at once, over all processes.")
@click.option("--clear", is_flag=True, help="Let the limits of the code hold again.")
@who_and_why
def set_(
    stage: str,
    rate: str | None,
    burst: int | None,
    max_running: int | None,
    clear: bool,
    by: str,
    reason: str | None,
    **given: Any,
) -> None:
    """Set limits of a stage; they win over those of its code, from within a second on, until they are cleared."""
    pipeline, dot, name = stage.partition(".")
    if not dot:
        raise click.BadParameter(f"{stage!r} is not of the form PIPELINE.STAGE", param_hint="PIPELINE.STAGE")
    wanted = {"rate": rate, "burst": burst, "max_running": max_running}
    limits: dict[str, str | int | None] = {limit: value for limit, value in wanted.items() if value is not None}
    if bool(limits) is clear:
        raise click.UsageError("name the limits to set, or say --clear")
    if rate is not None and rate != OFF:
        try:
            Rate.parse(rate, burst)
        except DeclarationError as error:
            raise click.BadParameter(str(error), param_hint="--rate") from None
    if rate is not None:
        # A burst belongs to its rate.
        limits["burst"] = burst
    settings = read_settings(given)

    async def run() -> None:
        async with connection(settings) as opened:
            await set_limits(opened, pipeline, name, wanted if clear else limits, by=by, reason=reason)

    asyncio.run(run())
    said = "those of its code" if clear else ", ".join(f"{limit} {value}" for limit, value in limits.items() if value)
    click.echo(f"limits of {stage}: {said}", err=True)
