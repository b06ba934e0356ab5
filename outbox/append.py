"""Append events in the transaction that makes them true.

Append last, after your own writes: the rows that you changed are locked until you commit, so whoever appends the next
event about them comes after you, and positions follow cause.
"""

from collections.abc import Awaitable, Sequence
from typing import Any, overload

from ..core.database import SCHEMA, Statements
from ..core.event import Event
from ..core.jsontext import encode
from .connections import AnyAsyncConnection, SyncConnection, execute


@overload
def append(connection: SyncConnection, *events: Event, schema: str = ...) -> None: ...


@overload
def append(connection: AnyAsyncConnection, *events: Event, schema: str = ...) -> Awaitable[None]: ...


def append(
    connection: SyncConnection | AnyAsyncConnection, *events: Event, schema: str = SCHEMA
) -> Awaitable[None] | None:
    """Append ``events``, in this order, to the outbox in the transaction of ``connection``; they exist if it commits.

    ``connection`` is a connection or session of SQLAlchemy over psycopg, or a connection of psycopg; on an asynchronous
    one the call is awaited. ``schema`` is the one that ``postroad migrate`` was given. Raises ``UnstorableError``
    before anything is written if an event's data are no JSON that Postgres keeps.

    >>> await append(connection, Event("HostReserved", task.task_id, task.pipeline, data={"host": "n17"}))
    """
    statement = Statements(__package__ or "", schema)["append"]
    return execute(connection, statement, _parameters(events), lambda rows: None)


def _parameters(events: Sequence[Event]) -> dict[str, list[Any]]:
    return {
        "task_id": [event.task_id for event in events],
        "pipeline": [event.pipeline for event in events],
        "type": [str(event.type) for event in events],
        "stage": [event.stage for event in events],
        "data": [encode(dict(event.data)) for event in events],
        "traceparent": [event.traceparent for event in events],
    }
