"""``postroad grant``: what other roles of Postgres may do."""

import asyncio
from typing import Any

import click

from ..outbox.grant import FUNCTIONS, grant_submit
from .connect import connection
from .options import options, read_settings


@click.group("grant")
def grant_command() -> None:
    """Let another role submit in SQL, without rights on the tables."""


@grant_command.command("submit")
@click.argument("role")
@options("database_url", "schema")
def submit(role: str, **given: Any) -> None:
    """Let ROLE submit tasks and ask where they are, in transactions of its own.

    It is given the use of the schema and of these functions, no table: submit, submit_many and task_status, and the two
    that postroad.submit() and submit_many() of Python call. Run it as the role that migrated.
    """
    settings = read_settings(given)

    async def run() -> None:
        async with connection(settings) as opened:
            await grant_submit(opened, role, settings.schema)

    asyncio.run(run())
    click.echo(f"{role} may call {', '.join(FUNCTIONS)} in schema {settings.schema}", err=True)
