"""Run one statement of ours on the connection that a caller has, in the caller's transaction.

Callers bring SQLAlchemy's or psycopg's connections, synchronous or not. Only "run it" differs between them: what is
run, and what is made of its rows, is written once.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, overload

import psycopg
from psycopg.rows import tuple_row
from sqlalchemy import Connection, CursorResult
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

SyncConnection = Connection | Session | psycopg.Connection[Any]
AnyAsyncConnection = AsyncConnection | AsyncSession | psycopg.AsyncConnection[Any]

Rows = Sequence[tuple[Any, ...]]
Value = TypeVar("Value")


@overload
def execute(
    connection: SyncConnection, statement: str, parameters: dict[str, Any], then: Callable[[Rows], Value]
) -> Value: ...


@overload
def execute(
    connection: AnyAsyncConnection, statement: str, parameters: dict[str, Any], then: Callable[[Rows], Value]
) -> Awaitable[Value]: ...


@overload
def execute(
    connection: SyncConnection | AnyAsyncConnection,
    statement: str,
    parameters: dict[str, Any],
    then: Callable[[Rows], Value],
) -> Value | Awaitable[Value]: ...


def execute(
    connection: SyncConnection | AnyAsyncConnection,
    statement: str,
    parameters: dict[str, Any],
    then: Callable[[Rows], Value],
) -> Value | Awaitable[Value]:
    """What ``then`` makes of the rows of ``statement``, none if it returns none; awaited on an asynchronous connection.

    A session is flushed first: what is written here comes last, with the caller's own rows locked. Raises ``TypeError``
    for anything that is no connection of SQLAlchemy's over psycopg, or of psycopg itself.
    """
    match connection:
        case AsyncConnection() | AsyncSession() | psycopg.AsyncConnection():
            return _execute_async(connection, statement, parameters, then)
        case psycopg.Connection():
            with connection.cursor(row_factory=tuple_row) as cursor:
                cursor.execute(statement.encode(), parameters)
                return then(cursor.fetchall() if cursor.description else [])
        case Session():
            connection.flush()
            return _execute(connection.connection(), statement, parameters, then)
        case Connection():
            return _execute(connection, statement, parameters, then)
        case _:
            raise TypeError(f"a connection or session of SQLAlchemy or psycopg is needed, not {_kind(connection)}")


def _execute(
    connection: Connection, statement: str, parameters: dict[str, Any], then: Callable[[Rows], Value]
) -> Value:
    _check_driver(connection.dialect.driver)
    return then(_rows(connection.exec_driver_sql(statement, parameters)))


async def _execute_async(
    connection: AnyAsyncConnection, statement: str, parameters: dict[str, Any], then: Callable[[Rows], Value]
) -> Value:
    if isinstance(connection, psycopg.AsyncConnection):
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(statement.encode(), parameters)
            return then(await cursor.fetchall() if cursor.description else [])
    if isinstance(connection, AsyncSession):
        await connection.flush()
        connection = await connection.connection()
    _check_driver(connection.dialect.driver)
    return then(_rows(await connection.exec_driver_sql(statement, parameters)))


def _rows(result: CursorResult[Any]) -> Rows:
    return [tuple(row) for row in result] if result.returns_rows else []


def _check_driver(driver: str) -> None:
    if driver not in ("psycopg", "psycopg_async"):
        raise TypeError(
            f"an engine on psycopg is needed, postgresql+psycopg://, not on {driver}; with other drivers call the"
            " functions in SQL: select postroad.submit(…)"
        )


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
