"""``postroad grant``: what other roles of Postgres may do."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import click
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.settings import Settings
from ..outbox.grant import FUNCTIONS, VIEWS, grant_read, grant_submit
from .connect import connection
from .options import options, read_settings


@click.group("grant")
def grant_command() -> None:
    """Let another role submit in SQL, without rights on the tables; or look, without the right to write."""


@grant_command.command("submit")
@click.argument("role")
@options("database_url", "schema")
def submit(role: str, **given: Any) -> None:
    """Let ROLE submit tasks and ask where they are, in transactions of its own.

    It is given the use of the schema and of these functions, no table: submit, submit_many and task_status, and the two
    that postroad.submit() and submit_many() of Python call. Run it as the role that migrated.
    """
    settings = read_settings(given)
    _grant(settings, role, grant_submit)
    click.echo(f"{role} may call {', '.join(FUNCTIONS)} in schema {settings.schema}", err=True)


@grant_command.command("read")
@click.argument("role")
@options("database_url", "schema")
def read(role: str, **given: Any) -> None:
    """Let ROLE read what there is: the views and the tables, payloads and results too.

    It sees no digest of a key of the door, no hash of a request and no lease, and writes nothing. Run it as the role
    that migrated, and again after a migration.
    """
    settings = read_settings(given)
    _grant(settings, role, grant_read)
    click.echo(f"{role} may read {', '.join(VIEWS)} and the tables of schema {settings.schema}", err=True)


def _grant(settings: Settings, role: str, grant: Callable[[AsyncConnection, str, str], Awaitable[None]]) -> None:
    async def run() -> None:
        async with connection(settings) as opened:
            await grant(opened, role, settings.schema)

    asyncio.run(run())
