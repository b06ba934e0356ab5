"""Let another role submit in its own transactions, by functions alone, or look at all but the secrets."""

from psycopg.sql import SQL, Composable, Identifier
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import metadata
from ..core.errors import NotFoundError

FUNCTIONS = ("submit", "submit_many", "task_status", "accept", "accept_all")
"""What is called in SQL, and what ``submit`` and ``submit_many`` of Python call."""

VIEWS = (
    "task_journey",
    "open_work",
    "stage_latency",
    "dead_letters",
    "failures",
    "operator_actions",
    "processes",
)
"""What people look through; all of them say in their comments what they show."""

SECRETS = {("api_key", "digest"), ("intake_key", "request_hash"), ("stage_run", "lease")}
"""The columns that nobody needs to read but postroad itself."""


async def grant_submit(connection: AsyncConnection, role: str, schema: str) -> None:
    """Let ``role`` call the functions that submit, in the caller's transaction. Safe to repeat.

    The caller must own ``schema`` and the functions. Raises ``NotFoundError`` if there is no such role.
    """
    functions = SQL(", ").join(Identifier(schema, function) for function in FUNCTIONS)
    await _grant(connection, role, schema, [SQL("execute on function {}").format(functions)])


async def grant_read(connection: AsyncConnection, role: str, schema: str) -> None:
    """Let ``role`` read the views and tables but for ``SECRETS``, in the caller's transaction. Safe to repeat.

    Payloads and results are no secrets to it. The caller must own ``schema`` and what is in it. Raises
    ``NotFoundError`` if there is no such role.
    """
    rights: list[Composable] = [
        SQL("select on {}").format(SQL(", ").join(Identifier(schema, one) for one in (*VIEWS, "alembic_version")))
    ]
    for table in metadata.tables.values():
        open_to_it = [column.name for column in table.columns if (table.name, column.name) not in SECRETS]
        columns = SQL(", ").join(map(Identifier, open_to_it))
        which = SQL("") if len(open_to_it) == len(table.columns) else SQL(" ({})").format(columns)
        rights.append(SQL("select{} on {}").format(which, Identifier(schema, table.name)))
    await _grant(connection, role, schema, rights)


async def _grant(connection: AsyncConnection, role: str, schema: str, rights: list[Composable]) -> None:
    if not await connection.scalar(text("select count(*) from pg_roles where rolname = :role"), {"role": role}):
        raise NotFoundError(f"there is no role {role!r} in this cluster of Postgres; create it first: create role …")
    for right in (SQL("usage on schema {}").format(Identifier(schema)), *rights):
        statement = SQL("grant {} to {}").format(right, Identifier(role))
        await connection.exec_driver_sql(statement.as_string(None))
