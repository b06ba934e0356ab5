"""Wait for tasks: for their end, or for what is added to their journeys; many callers, one statement.

However many wait, Postgres is asked once in ``INTERVAL`` for all of them; a caller that waits holds no connection. Not
by NOTIFY, which would cost every commit of every worker, whether somebody waits or not.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ..core.backoff import Pause
from ..core.database import Statements, is_transient
from ..core.errors import NotFoundError, first_line
from ..core.task import Status

log = logging.getLogger(__name__)

INTERVAL = 0.1
"""Seconds between two looks."""

WAITERS = 2000
"""Callers of one process that may wait for the end of a task."""

STREAMS = 500
"""Journeys that one process may follow. A look at one takes Postgres 13 µs, at a task that is waited for 3 µs."""


@dataclass(frozen=True, slots=True)
class Bookmark:
    """How far somebody has followed a journey: they know the events up to ``position`` that ``snapshot`` shows.

    What it does not show is of a transaction that had not ended then: it may still come, below ``position``. Without
    ``snapshot`` they know all up to ``position``. As text ``17``, or ``17-4715-4711-4713``: the position, the first
    transaction that had not begun, and those before it that had not ended.
    """

    position: int = 0
    snapshot: str | None = None
    """A ``pg_snapshot`` as text."""

    def __str__(self) -> str:
        if self.snapshot is None:
            return str(self.position)
        _, following, open_ = self.snapshot.split(":")
        return "-".join([str(self.position), following, *(open_.split(",") if open_ else ())])

    @classmethod
    def parse(cls, written: str) -> "Bookmark":
        """What ``str`` has made of one; the caller knows that it looks like one."""
        position, *transactions = map(int, written.split("-"))
        if not transactions:
            return cls(position)
        following, *others = transactions
        open_ = sorted({one for one in others if one < following})
        first = min(open_, default=following)
        return cls(position, f"{first}:{following}:{','.join(map(str, open_))}")


@dataclass(frozen=True, slots=True)
class Happening:
    """One event of a journey, and where in it those are who know it; ``None``: no further than before."""

    position: int
    type: str
    stage: str | None
    data: Any
    occurred_at: datetime
    bookmark: Bookmark | None


@dataclass(frozen=True, slots=True)
class News:
    """What has been added to a journey, by position; where it has been read to; and whether the task has ended."""

    events: Sequence[Happening]
    bookmark: Bookmark
    status: Status

    @property
    def is_end(self) -> bool:
        """True if nothing is added by itself any more."""
        return self.status.is_terminal


class Full(Exception):
    """As many wait as may."""


async def read_news(
    connection: AsyncConnection, asked: Sequence[tuple[UUID, Bookmark]], schema: str
) -> list[News | None]:
    """What has been added to each of these journeys since; ``None`` for a task that there is not.

    The events of one task become visible in the order of their positions as far as the transactions that append them
    hold the task, as ours do but for those that ask for what Redis has lost. Authors need not hold it: an event of a
    lower position may be seen later. It is told then, once.
    """
    parameters = {
        "task_id": [task_id for task_id, _ in asked],
        "position": [since.position for _, since in asked],
        "snapshot": [since.snapshot for _, since in asked],
    }
    rows = (await connection.exec_driver_sql(Statements(__package__ or "", schema)["follow"], parameters)).all()
    told: list[list[Any]] = [[] for _ in asked]
    for row in rows:
        told[row.place - 1].append(row)
    return [_news(since, rows) for (_, since), rows in zip(asked, told, strict=True)]


def _news(since: Bookmark, rows: Sequence[Any]) -> News | None:
    if rows[0].status is None:
        return None
    snapshot = rows[0].snapshot
    found = [row for row in rows if row.position is not None]
    late = sum(row.position <= since.position for row in found)
    events = []
    for number, row in enumerate(found, start=1):
        # Who knows only some of the late ones is no further than before: those would be told again, and not be lost.
        reached = None if number < late else Bookmark(max(row.position, since.position), snapshot)
        events.append(Happening(row.position, row.type, row.stage, row.data, row.occurred_at, reached))
    last = max(since.position, *(row.position for row in found), 0)
    return News(events, Bookmark(last, snapshot), Status(rows[0].status))


async def follow(engine: AsyncEngine, task_id: UUID, schema: str) -> AsyncIterator[News]:
    """The journey of one task, as it goes on, until the task has ended. Raises ``NotFoundError``.

    For one who is alone; many are served by a ``Watch``.
    """
    bookmark = Bookmark()
    news = None
    while news is None or not news.is_end:
        if news is not None:
            await asyncio.sleep(INTERVAL)
        async with engine.connect() as connection:
            (news,) = await read_news(connection, [(task_id, bookmark)], schema)
        if news is None:
            raise NotFoundError(f"there is no task {task_id}")
        bookmark = news.bookmark
        yield news


class Watch:
    """The one that asks, for all callers of this process."""

    def __init__(self, engine: AsyncEngine, schema: str) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._schema = schema
        self._ended: dict[asyncio.Future[Any], UUID] = {}
        self._news: dict[asyncio.Future[Any], tuple[UUID, Bookmark]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.streams = 0
        """How many follow a journey just now; they count themselves."""

    async def ended(self, task_id: UUID, *, within: float) -> bool:
        """Wait until the task has ended; false if it has not ``within`` so many seconds, or we stop.

        Raises ``Full``.
        """
        if len(self._ended) >= WAITERS:
            raise Full
        return bool(await self._answer(self._ended, task_id, within))

    async def news(self, task_id: UUID, since: Bookmark, *, within: float) -> News | None:
        """Wait until something has been added to the task's journey, or it has ended; ``None`` if we stop.

        Raises ``TimeoutError`` after so many seconds, ``NotFoundError`` if the task is gone.
        """
        news: News | None = await self._answer(self._news, (task_id, since), within)
        if news is None and not self._is_stopped:
            raise TimeoutError
        return news

    def stop(self) -> None:
        """Let all who wait go, and nobody wait any more; safe to call again."""
        self._is_stopped = True
        for future in [*self._ended, *self._news]:
            _settle(future, None)

    async def close(self) -> None:
        """Stop, and ask no more."""
        self.stop()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def _answer(self, asked: "dict[asyncio.Future[Any], Any]", what: Any, within: float) -> Any:
        if self._is_stopped:
            return None
        future = asyncio.get_running_loop().create_future()
        asked[future] = what
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            async with asyncio.timeout(within):
                return await future
        except TimeoutError:
            return None
        finally:
            del asked[future]

    async def _look(self) -> None:
        pause = Pause()
        while self._ended or self._news:
            await asyncio.sleep(INTERVAL)
            try:
                async with self._engine.connect() as connection:
                    await self._look_for_ends(connection)
                    await self._look_for_news(connection)
                pause.reset()
            except Exception as error:
                if not is_transient(error):
                    log.exception("waiting for tasks failed")
                    for future in [*self._ended, *self._news]:
                        _settle(future, error)
                    continue
                if pause.is_worth_a_line():
                    log.warning("waiting for tasks pauses: %s", first_line(error))
                await asyncio.sleep(pause.next())

    async def _look_for_ends(self, connection: AsyncConnection) -> None:
        asked = dict(self._ended)
        if not asked:
            return
        statement = Statements(__package__ or "", self._schema)["ended"]
        rows = await connection.exec_driver_sql(statement, {"task_id": list(set(asked.values()))})
        ended = {row.task_id for row in rows}
        for future, task_id in asked.items():
            if task_id in ended:
                _settle(future, True)

    async def _look_for_news(self, connection: AsyncConnection) -> None:
        asked = dict(self._news)
        if not asked:
            return
        for future, news in zip(asked, await read_news(connection, list(asked.values()), self._schema), strict=True):
            if news is None:
                _settle(future, NotFoundError(f"there is no task {asked[future][0]}"))
            elif news.events or news.is_end:
                _settle(future, news)


def _settle(future: "asyncio.Future[Any]", answer: Any) -> None:
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
