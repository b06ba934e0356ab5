"""``postroad key``: who may use the HTTP door."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import click
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import pipeline_table
from ..core.errors import DeclarationError
from ..core.settings import Settings, duration
from ..intake import keys
from .connect import connection
from .options import options, read_settings, who_and_why
from .tables import cell, plain, print_rows

T = TypeVar("T")


@click.group("key")
def key_command() -> None:
    """Make, list and revoke keys of the HTTP door."""


def _duration(context: click.Context, parameter: click.Parameter, value: str | None) -> timedelta | None:
    try:
        return None if value is None else duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@key_command.command("create")
@click.argument("name")
@options("database_url", "schema")
@click.option(
    "--scope", "scopes", multiple=True, required=True, type=click.Choice(keys.SCOPES),
    help="What it is good for; repeat it for several.",
)  # fmt: skip
@click.option(
    "--pipeline", "pipelines", multiple=True, metavar="NAME", help="Only for this one; repeat it for several."
)
@click.option("--rate", metavar="RATE", help="Requests, and lines of a batch, in a time: 100/s, 6000/m.")
@click.option("--burst", type=int, metavar="NUMBER", help="So many at once after a rest. [default: all of the rate's]")
@click.option("--expires", metavar="TIME", callback=_duration, help="Not good any more after this time: 90d, 12h.")
@who_and_why
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def create(
    name: str,
    scopes: Sequence[str],
    pipelines: Sequence[str],
    rate: str | None,
    burst: int | None,
    expires: timedelta | None,
    by: str,
    reason: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Make a key and print it: it is shown this once.

    NAME says whose it is, and stands in what is done with it. With the first key, keys become required.

    postroad key create shop --scope submit --scope read --pipeline orders --rate 100/s --expires 90d
    """

    async def make(opened: AsyncConnection) -> tuple[str, dict[str, Any], set[str]]:
        key, row = await keys.create(
            opened, name, scopes, by=by, reason=reason, pipelines=pipelines, rate=rate, burst=burst, expires=expires
        )
        known = await opened.scalars(select(pipeline_table.c.pipeline))
        return key, row, set(pipelines) - set(known)

    try:
        key, row, unknown = _do(read_settings(given), make)
    except DeclarationError as error:
        raise click.UsageError(str(error)) from None
    end = f", until {cell(row['expires_at'])}" if row["expires_at"] else ""
    click.echo(f"{name}: key {row['key_id']} for {cell(row['scopes'])}{end}. It is not shown again.", err=True)
    for pipeline in sorted(unknown):
        click.echo(f"note: there is no pipeline {pipeline!r} yet", err=True)
    click.echo(json.dumps({"key": key} | row, default=plain) if as_json else key)


@key_command.command("list")
@options("database_url", "schema")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def list_(as_json: bool, **given: Any) -> None:
    """List all keys, the newest first, without their secrets."""
    rows = _do(read_settings(given), keys.list_keys)
    columns = ["key_id", "name", "state", "scopes", "pipelines", "rate", "created_at", "expires_at", "last_used_at"]
    print_rows(rows, columns, as_json=as_json)


@key_command.command("revoke")
@click.argument("key_id")
@options("database_url", "schema")
@who_and_why
def revoke(key_id: str, by: str, reason: str | None, **given: Any) -> None:
    """Revoke a key for good, by its id (or by the key itself): it is refused within about two seconds."""
    parsed = keys.parse(key_id)
    key_id = parsed[0] if parsed else key_id
    is_changed = _do(read_settings(given), lambda opened: keys.revoke(opened, key_id, by=by, reason=reason))
    click.echo(f"{key_id} is {'' if is_changed else 'already '}revoked", err=True)


def _do(settings: Settings, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
    async def run() -> T:
        async with connection(settings) as opened:
            return await work(opened)

    return asyncio.run(run())
