"""The tables, as Alembic migrations that ship with the package.

A migration is never edited once it was released, and runs while the code of the release before is still at work.
"""

import io
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine

from ..core.database import sqlalchemy_url


def upgrade(database_url: str, schema: str = "postroad") -> None:
    """Bring ``schema`` to the newest version, creating it if need be. Does nothing if it is there already.

    Runs in one transaction; a second caller waits for the first. Needs the right to create the schema, or an empty
    schema of that name.
    """
    engine = create_engine(sqlalchemy_url(database_url), connect_args={"connect_timeout": 5})
    try:
        with engine.connect() as connection:
            command.upgrade(_config(schema, connection), "head")
    finally:
        engine.dispose()


def upgrade_sql(schema: str = "postroad") -> str:
    """The SQL that ``upgrade`` would run on an empty database, for those who run such things by hand."""
    buffer = io.StringIO()
    config = _config(schema, None, buffer)
    command.upgrade(config, "head", sql=True)
    return buffer.getvalue()


def head() -> str:
    """The newest revision; a test sees to it that ``core.database.REVISION`` says the same."""
    revision = ScriptDirectory.from_config(_config("postroad", None)).get_current_head()
    assert revision is not None
    return revision


def _config(schema: str, connection: Connection | None, output: io.StringIO | None = None) -> Config:
    config = Config(output_buffer=output) if output else Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["schema"] = schema
    config.attributes["connection"] = connection
    return config
