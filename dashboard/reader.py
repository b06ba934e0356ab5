"""How pages read: a few connections, a few seconds, and a note in the place of what could not be had.

The dashboard shares the intake's connections, and whoever looks must never hold up who submits. So it takes a few of
them at most, no statement runs for longer than ``PATIENCE``, and what many look at is asked for once.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from psycopg.errors import QueryCanceled
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ..core.errors import TooSlowError
from ..intake.transaction import as_problem

T = TypeVar("T")

PATIENCE = 3
"""Seconds that a statement may take."""

CONNECTIONS = 4
"""Connections that the dashboard takes at once, at most."""

BUSY = 5.0
"""Seconds that a part of a page waits for one of them."""

HANGS = 8.0
"""Seconds after which a server that says nothing at all counts as away."""

STALE = 4
"""How many times older than it should be something may be shown."""

Query = Callable[[AsyncConnection], Awaitable[T]]


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """A part of a page: its ``value``, or, if that is ``None`` because it could not be had in time, a ``note``."""

    value: T | None
    note: str | None = None


class Reader:
    """Reads in transactions that change nothing. ``pool`` is how many connections the engine has."""

    def __init__(self, engine: AsyncEngine, pool: int) -> None:
        self._engine = engine
        self._free = asyncio.Semaphore(max(1, min(CONNECTIONS, pool // 3)))

    async def read(self, query: Query[T]) -> T:
        """What ``query`` makes of a connection.

        Raises ``TooSlowError``, and a ``Problem`` with 503 if Postgres is away.
        """
        try:
            async with asyncio.timeout(BUSY):
                await self._free.acquire()
        except TimeoutError:
            raise TooSlowError("too much is being looked at just now") from None
        try:
            async with asyncio.timeout(HANGS), self._engine.begin() as connection:
                await bound(connection)
                return await query(connection)
        except TooSlowError:
            raise
        except Exception as error:
            if isinstance(error, DBAPIError) and isinstance(error.orig, QueryCanceled):
                raise TooSlowError(f"this took longer than {PATIENCE} s") from error
            raise as_problem(error) from error
        finally:
            self._free.release()

    async def part(self, query: Query[T]) -> Part[T]:
        """The same for a part of a page, which can do without."""
        return await part(self.read(query))


async def part(reading: Awaitable[T]) -> Part[T]:
    """What is being read, or why it could not be had in time. Raises a ``Problem`` if Postgres is away."""
    try:
        return Part(await reading)
    except TooSlowError as error:
        return Part(None, str(error))


async def bound(connection: AsyncConnection) -> None:
    """Let the transaction change nothing, and none of its statements take long."""
    settings = {"transaction_read_only": "on", "statement_timeout": f"{PATIENCE}s", "jit": "off"}
    await connection.execute(select(*(func.set_config(name, value, True) for name, value in settings.items())))


@dataclass(frozen=True, slots=True)
class _Look(Generic[T]):
    value: T | None
    error: TooSlowError | None
    at: float


class Shared(Generic[T]):
    """What many look at, read once in ``every`` seconds however many they are; also that it took too long.

    Who looks between ``every`` and ``STALE`` times that gets what there is, while it is read anew for the next: those
    who keep looking never wait.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], *, every: float) -> None:
        self._read = read
        self._every = every
        self._look: _Look[T] | None = None
        self._looking: asyncio.Task[_Look[T]] | None = None
        self._tasks: set[asyncio.Task[_Look[T]]] = set()

    async def get(self) -> tuple[T, float]:
        """What was seen, and how many seconds ago. Raises ``TooSlowError``, or whatever else the reading raises."""
        loop = asyncio.get_running_loop()
        look = self._look
        age = loop.time() - look.at if look else math.inf
        if age >= self._every and self._looking is None:
            self._looking = asyncio.create_task(self._take())
            self._tasks.add(self._looking)
            self._looking.add_done_callback(self._taken)
        if look is None or age >= STALE * self._every:
            assert self._looking is not None
            # Who goes away must not take it from the others.
            look = await asyncio.shield(self._looking)
        if look.error:
            raise TooSlowError(str(look.error))
        assert look.value is not None
        return look.value, loop.time() - look.at

    def forget(self) -> None:
        """Something has been changed: who looks from now on sees it."""
        self._look = self._looking = None

    async def close(self) -> None:
        """End what is being read."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self) -> _Look[T]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return _Look(await self._read(), None, began)
        except TooSlowError as error:
            return _Look(None, error, loop.time())

    def _taken(self, looking: asyncio.Task[_Look[T]]) -> None:
        self._tasks.discard(looking)
        is_latest = self._looking is looking
        if is_latest:
            self._looking = None
        # Looked for: those who waited may all have gone.
        has_failed = looking.cancelled() or looking.exception() is not None
        if is_latest:
            self._look = None if has_failed else looking.result()
