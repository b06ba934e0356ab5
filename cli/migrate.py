"""``postroad migrate``: the tables. Apart from the other commands, which need not load Alembic to start."""

from typing import Any

import click
from alembic.util import CommandError

from .. import migrations
from ..core.errors import SchemaError
from ..core.settings import Settings
from .connect import translated
from .options import options, read_settings


@click.command("migrate")
@options("database_url", "schema")
@click.option("--sql", is_flag=True, help="Print the SQL instead of running it.")
def migrate_command(sql: bool, **given: Any) -> None:
    """Bring the database to the newest version.

    Does nothing if it is there already; several at once wait for each other.
    """
    settings = read_settings(given)
    if sql:
        click.echo(migrations.upgrade_sql(settings.schema), nl=False)
        return
    migrate(settings)
    click.echo(f"schema {settings.schema} is at revision {migrations.head()}", err=True)


def migrate(settings: Settings) -> None:
    """Bring the database to the newest version. Raises ``UnreachableError`` and, if it is newer, ``SchemaError``."""
    try:
        with translated(settings):
            migrations.upgrade(settings.database_url, settings.schema)
    except CommandError as error:
        raise SchemaError(f"schema {settings.schema!r} is of another version of postroad: {error}") from error
