"""Read the outbox in windows between ticks.

A tick is a number and a snapshot of Postgres. The window of a tick holds what is visible in its snapshot and was not in
that of the tick before, so each committed event is in exactly one window, however long its transaction took, and
nothing needs to be marked or deleted. The idea is that of PgQ (Skytools, Marko Kreen, 2007).
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from ..core.database import Statements
from ..core.priority import Priority

PAGE = 500
"""Events that are read, and published, at once: a few milliseconds for Redis."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick; ``snapshot`` is a ``pg_snapshot`` as text."""

    tick: int
    snapshot: str


@dataclass(frozen=True, slots=True)
class Window:
    """The events between two ticks. ``before`` and ``snapshot`` are ``pg_snapshot`` as text."""

    tick: int
    before: str
    snapshot: str


@dataclass(frozen=True, slots=True)
class Appended:
    """One event as the relay reads it; ``time`` is when its transaction began, in ms since 1970."""

    position: int
    task_id: UUID
    pipeline: str
    type: str
    stage: str | None
    traceparent: str | None
    time: int
    priority: int = Priority.NORMAL


class Ticks:
    """Makes ticks and reads windows, on one plain connection in autocommit that nobody else uses meanwhile."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], schema: str) -> None:
        self._connection = connection
        self._sql = Statements(__package__ or "", schema)

    async def last(self) -> tuple[Tick, bool]:
        """The newest tick, and whether this server can go on from it.

        It cannot after a restore or a switchover to a server that did not make the tick; see ``adopt``.
        """
        row = await self._one("last_tick")
        if row is None:
            return await self.adopt(), True
        return Tick(row[0], row[1]), row[2]

    async def is_news(self, last: Tick) -> bool:
        """True if there are events that ``last`` did not cover."""
        return await self._one("peek", snapshot=last.snapshot) is not None

    async def make(self) -> Tick | None:
        """Make the next tick, committed to disk; ``None`` if the last one is not of this server."""
        return await self._make("tick")

    async def adopt(self) -> Tick:
        """Make a tick that begins anew on this server; everything open is to be asked for again."""
        tick = await self._make("adopt")
        assert tick is not None
        return tick

    async def is_known(self, tick: int) -> bool:
        """True if this server made a tick of this number."""
        return await self._one("known_tick", tick=tick) is not None

    async def windows(self, tick: int, *, inclusive: bool = False, limit: int = 16) -> list[Window]:
        """The windows of the ticks after ``tick``, or from it on, oldest first, at most ``limit``."""
        async with self._connection.cursor(row_factory=class_row(Window)) as cursor:
            await cursor.execute(self._sql["windows"], {"tick": tick, "inclusive": inclusive, "limit": limit})
            return await cursor.fetchall()

    async def pages(self, window: Window, position: int = 0) -> AsyncGenerator[list[Appended], None]:
        """The events of ``window`` after ``position`` that somebody may wait for, by position, in pages.

        The last page is shorter than ``PAGE``, and may be empty. A window larger than a page is read through a
        cursor on the server, so its size costs no memory here.
        """
        parameters = {
            "before": window.before,
            "snapshot": window.snapshot,
            "position": position,
            "limit": PAGE,
        }
        async with self._connection.cursor(row_factory=class_row(Appended)) as cursor:
            await cursor.execute(self._sql["window"], parameters)
            page = await cursor.fetchall()
        yield page
        if len(page) < PAGE:
            return
        parameters |= {"position": page[-1].position, "limit": None}
        async with (
            self._connection.transaction(),
            self._connection.cursor("window", row_factory=class_row(Appended)) as cursor,
        ):
            await cursor.execute(self._sql["window"], parameters)
            while len(page) == PAGE:
                page = await cursor.fetchmany(PAGE)
                yield page

    async def _make(self, statement: str) -> Tick | None:
        async with self._connection.transaction():
            # A tick that a crash could take back would let an event out that never was.
            await self._connection.execute("set local synchronous_commit = on")
            await self._connection.execute(self._sql["lock_ticks"])
            row = await self._one(statement)
        return Tick(row[0], row[1]) if row else None

    async def _one(self, statement: str, **parameters: Any) -> Any:
        cursor = await self._connection.execute(self._sql[statement], parameters or None)
        return await cursor.fetchone()
