"""Requeue or discard many dead letters: at once, or so many in a second that they do not all run together.

What goes on is known to this process alone. If it stops, what is left stays a dead letter, and can be asked for again.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from ..core.database import dead_letter_table
from ..core.errors import first_line
from ..intake.dead_letters import Selection, discard, requeue
from ..intake.keyring import Caller
from ..intake.problems import Problem
from ..intake.transaction import transaction

log = logging.getLogger(__name__)

FASTEST = 10_000
"""Letters in a second at most."""

BATCH = 500
"""Letters in a transaction at most."""

KEPT = 20
"""Works that are remembered when they have ended."""

PATIENCE = 2.0
"""Seconds between two tries while Postgres is away."""

AT_ONCE = 3.0
"""Seconds that a request waits for the end of its work, so that a small one is done when the next page is shown."""


@dataclass(eq=False, slots=True)
class Work:
    """Letters that are being resolved, or have been."""

    number: int
    action: str
    selection: Selection
    rate: float | None
    who: Mapping[str, Any]
    began_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    resolved: int = 0
    left_alone: int = 0
    error: str | None = None
    is_stopped: bool = False
    has_ended: bool = False

    @property
    def filters(self) -> dict[str, str]:
        """What it was asked for."""
        names = ("pipeline", "stage", "fingerprint")
        return {name: value for name in names if (value := getattr(self.selection, name)) is not None}


class Pacer:
    """Does it, beside the requests."""

    def __init__(self, engine: AsyncEngine, schema: str) -> None:
        self._engine = engine
        self._schema = schema
        self._works: list[Work] = []
        self._tasks: dict[Work, asyncio.Task[None]] = {}
        self._count = 0

    def of(self, caller: Caller) -> Collection[Work]:
        """What goes on, and what was done last, of that which ``caller`` may see; the latest first."""
        return [work for work in reversed(self._works) if _is_within(work.selection, caller)]

    async def begin(self, action: str, selection: Selection, rate: float | None, who: Mapping[str, Any]) -> Work:
        """Begin to ``requeue`` or ``discard`` what ``selection`` finds. Raises a ``Problem`` if it is being done."""
        for work in self._works:
            if not work.has_ended and work.selection == selection:
                raise Problem(HTTPStatus.CONFLICT, "refused", "the same letters are being resolved already")
        self._count += 1
        work = Work(self._count, action, selection, rate, who)
        ended = [one for one in self._works if one.has_ended]
        for one in ended[:-KEPT]:
            self._works.remove(one)
        self._works.append(work)
        task = asyncio.create_task(self._run(work))
        self._tasks[work] = task
        task.add_done_callback(lambda _: self._tasks.pop(work, None))
        await asyncio.wait([task], timeout=AT_ONCE)
        return work

    def stop(self, number: str, caller: Caller) -> None:
        """End a work; what it has resolved is resolved. Raises a ``Problem`` if it is not done by this process."""
        for work in self.of(caller):
            if str(work.number) == number and not work.has_ended:
                work.is_stopped = True
                return
        detail = "that has ended, or is done by another process of the intake; look again"
        raise Problem(HTTPStatus.CONFLICT, "refused", detail)

    async def close(self) -> None:
        """End all of them."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, work: Work) -> None:
        size = BATCH if work.rate is None else max(1, min(BATCH, round(work.rate)))
        pause = 0.0 if work.rate is None else size / work.rate
        after, last = 0, None
        try:
            while not work.is_stopped:
                try:
                    # Those that die again meanwhile are left: or what always fails would be requeued for ever.
                    last = await self._find_last() if last is None else last
                    letters = await self._resolve(work, after, last, size)
                except Exception as error:
                    if not isinstance(error, Problem):
                        raise
                    work.error = "Postgres is away; it goes on when that is back"
                    await asyncio.sleep(PATIENCE)
                    continue
                work.error = None
                if len(letters) < size:
                    break
                after = letters[-1]
                await asyncio.sleep(pause)
        except Exception as error:
            log.exception("resolving dead letters ended")
            work.error = first_line(error)
        finally:
            work.has_ended = True
            log.info("%s: %d dead letters by %s", work.action, work.resolved, work.who["by"])

    async def _find_last(self) -> int:
        async with transaction(self._engine) as connection:
            return await connection.scalar(select(func.max(dead_letter_table.c.dead_letter_id))) or 0

    async def _resolve(self, work: Work, after: int, last: int, size: int) -> list[int]:
        column = dead_letter_table.c.dead_letter_id
        is_next = work.selection.condition() & (column > after) & (column <= last)
        query = select(column).where(is_next).order_by(column).limit(size)
        resolve = {"requeue": requeue, "discard": discard}[work.action]
        async with transaction(self._engine) as connection:
            letters = list(await connection.scalars(query))
            resolved = await resolve(connection, letters, self._schema, **work.who)
        work.resolved += len(resolved)
        work.left_alone += len(letters) - len(resolved)
        return letters


def _is_within(selection: Selection, caller: Caller) -> bool:
    """True if ``caller`` may touch all that ``selection`` may."""
    if caller.pipelines is None:
        return True
    allowed = selection.pipelines if selection.pipeline is None else [selection.pipeline]
    return allowed is not None and set(allowed) <= set(caller.pipelines)
