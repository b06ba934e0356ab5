"""The connection of this folder's commands, and what they say and exit with when there is none."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import OperationalError

from postroad import Settings
from postroad.core.database import sqlalchemy_url
from postroad.core.errors import SettingsError

EXIT_UNREACHABLE = 69
EXIT_BAD_SETTINGS = 78


@contextmanager
def transaction(database_url: str) -> Iterator[Connection]:
    """A connection in a transaction that commits at the end of the block. Raises ``SettingsError`` for a bad URL."""
    engine = create_engine(sqlalchemy_url(database_url), connect_args={"connect_timeout": 5})
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


@contextmanager
def command() -> Iterator[str]:
    """Run a command's block with ``DATABASE_URL``; one line on stderr if that is bad, or its server away."""
    try:
        yield Settings.read().database_url
    except SettingsError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_BAD_SETTINGS)
    except OperationalError as error:
        print(f"Postgres does not answer: {error.orig}", file=sys.stderr)
        sys.exit(EXIT_UNREACHABLE)
