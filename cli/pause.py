"""``postroad pause`` and ``postroad resume``: a stage, without a restart."""

import asyncio
from typing import Any

import click

from ..core.settings import Settings
from ..intake.pause import set_paused
from .connect import connection
from .options import options, read_settings, who_and_why


@click.command("pause")
@click.argument("stage", metavar="PIPELINE.STAGE")
@options("database_url", "schema")
@who_and_why
def pause_command(stage: str, by: str, reason: str | None, **given: Any) -> None:
    """Pause a stage: within a second its workers read nothing more. What they run comes to its end."""
    is_changed = asyncio.run(_set(read_settings(given), stage, is_paused=True, by=by, reason=reason))
    click.echo(f"{stage} is {'' if is_changed else 'already '}paused", err=True)


@click.command("resume")
@click.argument("stage", metavar="PIPELINE.STAGE")
@options("database_url", "schema")
@who_and_why
def resume_command(stage: str, by: str, reason: str | None, **given: Any) -> None:
    """Resume a stage that was paused."""
    is_changed = asyncio.run(_set(read_settings(given), stage, is_paused=False, by=by, reason=reason))
    click.echo(f"{stage} {'is resumed' if is_changed else 'was not paused'}", err=True)


async def _set(settings: Settings, name: str, *, is_paused: bool, by: str, reason: str | None) -> bool:
    pipeline, dot, stage = name.partition(".")
    if not dot:
        raise click.BadParameter(f"{name!r} is not of the form PIPELINE.STAGE", param_hint="PIPELINE.STAGE")
    async with connection(settings) as opened:
        return await set_paused(opened, pipeline, stage, settings.schema, paused=is_paused, by=by, reason=reason)
