"""``postroad schedule``: tasks that are submitted by a cron line."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import click
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.errors import DeclarationError, UnstorableError
from ..core.jsontext import decode
from ..core.settings import Settings
from ..intake import schedules
from .connect import connection
from .options import options, read_settings, who_and_why
from .tables import cell, print_rows

T = TypeVar("T")


@click.group("schedule")
def schedule_command() -> None:
    """Submit tasks by cron lines: each tick once, however many relays run."""


def _payload(context: click.Context, parameter: click.Parameter, value: str) -> Any:
    try:
        return decode(value.encode("utf-8", "surrogateescape"))
    except UnstorableError as error:
        raise click.BadParameter(str(error).replace("the body", "it")) from None


def _labels(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, equals, _ in pairs:
        if not equals:
            raise click.BadParameter(f"{name!r} is not of the form NAME=VALUE")
    return {name: value for name, _, value in pairs}


@schedule_command.command("add")
@click.argument("name")
@click.argument("pipeline")
@click.argument("cron")
@options("database_url", "schema")
@click.option("--timezone", default="UTC", show_default=True, help="Whose clock the line goes by, as Europe/Berlin.")
@click.option("--payload", metavar="JSON", default="null", show_default=True, callback=_payload, help="Of each task.")
@click.option("--label", "labels", metavar="NAME=VALUE", multiple=True, callback=_labels, help="Of each task.")
@click.option("--replace", is_flag=True, help="Change the schedule of this name, if there is one.")
@who_and_why
def add(
    name: str,
    pipeline: str,
    cron: str,
    timezone: str,
    payload: Any,
    labels: dict[str, str],
    replace: bool,
    by: str,
    reason: str | None,
    **given: Any,
) -> None:
    """Submit a task to PIPELINE whenever the CRON line says: minute, hour, day of month, month, day of week.

    postroad schedule add nightly orders '30 2 * * 1-5' --timezone Europe/Berlin --payload '{"what": "report"}'
    """
    settings = read_settings(given)
    try:
        first = _do(
            settings,
            lambda opened: schedules.add(
                opened, name, pipeline, cron, settings.schema,
                timezone=timezone, payload=payload, labels=labels, replace=replace, by=by, reason=reason,
            ),
        )  # fmt: skip
    except (DeclarationError, UnstorableError) as error:
        raise click.UsageError(str(error)) from None
    click.echo(f"{name}: first at {_told(first)}", err=True)


@schedule_command.command("list")
@options("database_url", "schema")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def list_(as_json: bool, **given: Any) -> None:
    """List the schedules: when each comes next, when it came last, and which task that was."""
    rows = _do(read_settings(given), schedules.list_schedules)
    columns = ["schedule", "pipeline", "cron", "timezone", "paused", "next_at", "last_at", "last_task"]
    print_rows(rows, columns, as_json=as_json)


@schedule_command.command("pause")
@click.argument("name")
@options("database_url", "schema")
@who_and_why
def pause(name: str, by: str, reason: str | None, **given: Any) -> None:
    """Let the ticks of a schedule pass."""
    is_changed = _do(read_settings(given), lambda opened: schedules.pause(opened, name, by=by, reason=reason))
    click.echo(f"{name} is {'' if is_changed else 'already '}paused", err=True)


@schedule_command.command("resume")
@click.argument("name")
@options("database_url", "schema")
@who_and_why
def resume(name: str, by: str, reason: str | None, **given: Any) -> None:
    """Go on with a schedule that was paused, from its next tick on."""
    next_at = _do(read_settings(given), lambda opened: schedules.resume(opened, name, by=by, reason=reason))
    click.echo(f"{name}: next at {_told(next_at)}", err=True)


@schedule_command.command("remove")
@click.argument("name")
@options("database_url", "schema")
@who_and_why
def remove(name: str, by: str, reason: str | None, **given: Any) -> None:
    """Remove a schedule. The tasks that it has submitted stay."""
    _do(read_settings(given), lambda opened: schedules.remove(opened, name, by=by, reason=reason))
    click.echo(f"{name} is removed", err=True)


@schedule_command.command("run-now")
@click.argument("name")
@options("database_url", "schema")
@who_and_why
def run_now(name: str, by: str, reason: str | None, **given: Any) -> None:
    """Submit a task of a schedule now, beside its ticks; prints the task's id."""
    settings = read_settings(given)
    click.echo(_do(settings, lambda opened: schedules.run_now(opened, name, settings.schema, by=by, reason=reason)))


def _do(settings: Settings, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
    async def run() -> T:
        async with connection(settings) as opened:
            return await work(opened)

    return asyncio.run(run())


def _told(moment: datetime) -> str:
    return cell(moment)
