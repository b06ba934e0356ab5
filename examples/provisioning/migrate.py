"""``python -m examples.provisioning.migrate``: the example's own tables, in the database of ``DATABASE_URL``.

They are in the schema ``provisioning`` with a version table of their own, so that they and postroad's tables can be
migrated in either order.
"""

import sys
from pathlib import Path

from alembic import command as alembic
from alembic.config import Config
from sqlalchemy import text

from . import database


def migrate(database_url: str) -> None:
    """Bring the schema to the newest version, with accounts and machines in it. Does nothing if it is there already.

    Runs in one transaction; a second caller waits for the first.
    """
    with database.transaction(database_url) as connection:
        lock = text("select pg_advisory_xact_lock(hashtextextended('provisioning.migrate', 0))")
        connection.execute(lock)
        connection.execute(text("create schema if not exists provisioning"))
        config = Config()
        folder = Path(__file__).with_name("migrations")
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        config.attributes["connection"] = connection
        alembic.upgrade(config, "head")


if __name__ == "__main__":
    with database.command() as database_url:
        migrate(database_url)
    print("the tables of the provisioning example are in place", file=sys.stderr)
