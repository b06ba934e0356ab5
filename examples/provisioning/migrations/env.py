"""Run by Alembic, on the connection and in the transaction of ``examples.provisioning.migrate``."""

from alembic import context

SCHEMA = "provisioning"

context.configure(connection=context.config.attributes["connection"], version_table_schema=SCHEMA)
context.run_migrations()
