"""Run by Alembic: the migrations in one transaction, under a lock, in our schema.

Alembic loads this file by its path, so its imports are absolute.
"""

from alembic import context
from sqlalchemy import Connection, inspect, text
from sqlalchemy.schema import CreateSchema

from postroad.core.database import metadata

config = context.config
schema: str = config.attributes["schema"]


def migrate(connection: Connection | None) -> None:
    """Bring the schema to the head. Two at once are safe: the second waits, then finds nothing to do."""
    context.configure(
        connection=connection,
        dialect_name="postgresql",
        target_metadata=metadata,
        version_table_schema=schema,
        transaction_per_migration=False,
        literal_binds=connection is None,
    )
    with context.begin_transaction():
        if connection is None:
            context.execute(f"create schema if not exists {schema}")
        context.run_migrations()


if context.is_offline_mode():
    migrate(None)
else:
    connection: Connection = config.attributes["connection"]
    with connection.begin():
        connection.execute(
            text("select pg_advisory_xact_lock(hashtextextended(:key, 0))"), {"key": f"{schema}.migrate"}
        )
        # Not "if not exists", which asks for the right to create one even where there is one.
        if not inspect(connection).has_schema(schema):
            connection.execute(CreateSchema(schema))
        migrate(connection)
