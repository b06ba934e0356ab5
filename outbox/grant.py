"""Let a role submit in its own transactions, and nothing else: the functions are its only way in."""

from psycopg.sql import SQL, Identifier
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.errors import NotFoundError

FUNCTIONS = ("submit", "submit_many", "task_status", "accept", "accept_all")
"""What is called in SQL, and what ``submit`` and ``submit_many`` of Python call."""


async def grant_submit(connection: AsyncConnection, role: str, schema: str) -> None:
    """Let ``role`` call the functions that submit, in the caller's transaction. Safe to repeat.

    The caller must own ``schema`` and the functions. Raises ``NotFoundError`` if there is no such role.
    """
    if not await connection.scalar(text("select count(*) from pg_roles where rolname = :role"), {"role": role}):
        raise NotFoundError(f"there is no role {role!r} in this cluster of Postgres; create it first: create role …")
    functions = SQL(", ").join(Identifier(schema, function) for function in FUNCTIONS)
    for statement in (
        SQL("grant usage on schema {} to {}").format(Identifier(schema), Identifier(role)),
        SQL("grant execute on function {} to {}").format(functions, Identifier(role)),
    ):
        await connection.exec_driver_sql(statement.as_string(None))
