"""Append events in the transaction that makes them true.

Append last, after your own writes: the rows that you changed are locked until you commit, so whoever appends the next
event about them comes after you, and positions follow cause.
"""

from collections.abc import Awaitable, Sequence
from typing import Any, overload

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from ..core.database import SCHEMA, Statements
from ..core.event import Event
from ..core.jsontext import encode


@overload
def append(connection: Connection | Session, *events: Event, schema: str = ...) -> None: ...


@overload
def append(connection: AsyncConnection | AsyncSession, *events: Event, schema: str = ...) -> Awaitable[None]: ...


def append(
    connection: Connection | Session | AsyncConnection | AsyncSession,
    *events: Event,
    schema: str = SCHEMA,
) -> Awaitable[None] | None:
    """Append ``events``, in this order, to the outbox in the transaction of ``connection``; they exist if it commits.

    On an asynchronous connection or session the call is awaited, on a synchronous one it is not. ``schema`` is the
    one that ``postroad migrate`` was given. Raises ``UnstorableError`` before anything is written if an event's data
    are no JSON that Postgres keeps.

    >>> await append(connection, Event("HostReserved", task.task_id, task.pipeline, data={"host": "n17"}))
    """
    parameters = _parameters(events)
    statement = Statements(__package__ or "", schema)["append"]
    match connection:
        case AsyncConnection() | AsyncSession():
            return _append_async(connection, statement, parameters)
        case Connection():
            connection.exec_driver_sql(statement, parameters)
        case Session():
            connection.flush()
            connection.connection().exec_driver_sql(statement, parameters)
        case _:
            raise TypeError(f"append() takes a SQLAlchemy connection or session, not {type(connection).__name__}")
    return None


async def _append_async(
    connection: AsyncConnection | AsyncSession, statement: str, parameters: dict[str, list[Any]]
) -> None:
    if isinstance(connection, AsyncSession):
        await connection.flush()
        connection = await connection.connection()
    await connection.exec_driver_sql(statement, parameters)


def _parameters(events: Sequence[Event]) -> dict[str, list[Any]]:
    return {
        "task_id": [event.task_id for event in events],
        "pipeline": [event.pipeline for event in events],
        "type": [str(event.type) for event in events],
        "stage": [event.stage for event in events],
        "data": [encode(dict(event.data)) for event in events],
        "traceparent": [event.traceparent for event in events],
    }
