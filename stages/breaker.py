"""The circuit breaker of a stage whose work a service does.

While the service does not answer well, the stage rests: its processes read nothing, and what they hold waits, for 1 s,
2 s, 4 s … 30 s. After each rest one attempt, over all processes, is let through to see. The state is in the row of the
stage, where people and all processes see it; a process hears of it with its other settings, once a second, and acts on
what it sees itself at once.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncEngine

from ..core.database import Statements, is_transient
from ..core.errors import first_line
from ..core.pipeline import Stage

log = logging.getLogger(__name__)

SILENCE = 2.0
"""Seconds without a good answer after which the first failure of the service tells that it is away."""

IN_A_ROW = 5
"""Failures of the service without a good answer between them that tell the same, however lately one came before."""

WINDOW, LEAST, SHARE = 30.0, 20, 0.5
"""Within so many seconds, of at least so many answers, this share of failures opens the breaker."""

SHORTEST, LONGEST = timedelta(seconds=1), timedelta(seconds=30)
"""A rest; as long as ``rest.sql`` makes them."""

NEWS = 1.0
"""Seconds for which what this process has recorded itself is newer than what it hears."""


class Breaker:
    """What one process knows of the service behind ``stage``."""

    def __init__(self, stage: Stage, engine: AsyncEngine, schema: str) -> None:
        self._stage = stage
        self._engine = engine
        self._sql = Statements(__package__ or "", schema)
        self._until: float | None = None
        """When the rest ends, by our clock; ``None``: the stage does not rest."""
        self._trouble = ""
        self._failures = 0
        self._answers: deque[tuple[float, bool]] = deque()
        """Those of the last ``WINDOW``: when, and whether it was a failure."""
        self._failed = 0
        """How many of them were failures."""
        self._last_well = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._changing = asyncio.Lock()
        self._changed_at = float("-inf")
        self.on_change: Callable[[], None] = lambda: None
        """Called when the stage may begin more than before."""

    @property
    def is_closed(self) -> bool:
        """True if the service works, as far as is known: nothing holds the stage up."""
        return self._until is None

    @property
    def limit(self) -> int | None:
        """How many entries the stage may hold now: none while it rests, one to see, ``None``: as many as it likes."""
        if self._until is None:
            return None
        return 0 if self.rest else 1

    @property
    def rest(self) -> timedelta:
        """How much longer the stage rests; nothing if one attempt may be let through."""
        left = 0.0 if self._until is None else self._until - time.monotonic()
        return timedelta(seconds=max(left, 0.0))

    @property
    def trouble(self) -> str:
        """Why the stage rests."""
        return self._trouble

    async def admit(self, within: timedelta) -> timedelta | None:
        """``None`` if an attempt, which takes at most ``within``, may call the service; else when to ask again."""
        if self._until is None:
            return None
        if not (left := self.rest):
            async with self._changing:
                if self._until is None:
                    return None
                if not (left := self.rest):
                    claimed = await self._tell("probe", within=within)
                    self._open(within, self._trouble)
                    if claimed is not None:
                        log.info("%s: one attempt is let through to see", self._stage.full_name)
                        return None
        return max(min(left, LONGEST), SHORTEST)

    async def answered(self, *, was_closed: bool) -> None:
        """The service answered as it should; ``was_closed``: nothing held the stage up when the attempt began."""
        now = time.monotonic()
        self._failures = 0
        self._last_well = now
        if was_closed:
            self._count(now, is_failure=False)
            return
        async with self._changing:
            if self._until is not None:
                await self._tell("well")
                log.info("%s goes on: its service answers", self._stage.full_name)
                self._close()

    async def failed(self, trouble: str, *, was_closed: bool) -> None:
        """The service failed on an attempt: that may be the task's fault, unless it fails on many."""
        now = time.monotonic()
        if not was_closed:
            await self._rest(LONGEST, trouble, is_probe=True)
        elif self._until is None and self._count(now, is_failure=True):
            await self._rest(LONGEST, trouble, is_probe=False)

    async def unavailable(self, trouble: str, *, was_closed: bool) -> bool:
        """The service could not do any work; returns whether this tells more of the attempt than of the service.

        It does if the service worked as far as was known: then the attempt counts. While the stage rests it does not.
        """
        now = time.monotonic()
        if not was_closed:
            await self._rest(None, trouble, is_probe=True)
            return False
        if self._until is not None:
            return False
        self._failures += 1
        if self._count(now, is_failure=True) or now - self._last_well > SILENCE or self._failures >= IN_A_ROW:
            await self._rest(None, trouble, is_probe=False)
        return True

    async def ask_less(self, after: timedelta, trouble: str, *, was_closed: bool) -> None:
        """The service asks to be left alone for ``after``."""
        await self._rest(after, trouble, is_probe=not was_closed)

    async def gone(self, trouble: str) -> None:
        """The service says that it is gone for good: pause the stage, until a person resumes it."""
        if await self._tell("gone", trouble=trouble) is not None:
            log.error("%s is paused: %s", self._stage.full_name, trouble)

    def hear(self, rest: timedelta | None, trouble: str | None) -> None:
        """Heed what is recorded: for how much longer the stage rests, ``None``: not at all; and why."""
        if self._changing.locked() or time.monotonic() - self._changed_at < NEWS:
            return
        if rest is None:
            if self._until is not None:
                self._close()
        elif self._until is None or abs(self._until - time.monotonic() - rest.total_seconds()) > 0.5:
            self._open(rest, trouble or "")

    async def _rest(self, rest: timedelta | None, trouble: str, *, is_probe: bool) -> None:
        if not is_probe:
            if self._until is not None:
                return
            # At once, before anybody else who finds the service away has an attempt counted.
            self._open(rest or SHORTEST, trouble)
        async with self._changing:
            recorded = await self._tell("rest", rest=rest, trouble=trouble, is_probe=is_probe)
            left: timedelta = recorded.left if recorded else rest or SHORTEST
            log.warning("%s rests for %.1f s: %s", self._stage.full_name, left.total_seconds(), trouble)
            self._open(left, trouble)

    async def _tell(self, statement: str, **parameters: Any) -> Row[Any] | None:
        """Record a change; the row that came back. While Postgres is away what this process sees must do."""
        named = {"pipeline": self._stage.pipeline, "stage": self._stage.name} | parameters
        self._changed_at = time.monotonic()
        try:
            async with self._engine.begin() as connection:
                result = await connection.exec_driver_sql(self._sql[statement], named)
                return result.one_or_none() if result.returns_rows else None
        except Exception as error:
            if not is_transient(error):
                raise
            log.info("the state of %s is not recorded: %s", self._stage.full_name, first_line(error))
            return None

    def _count(self, now: float, *, is_failure: bool) -> bool:
        """Remember an answer; whether too many were failures."""
        self._answers.append((now, is_failure))
        self._failed += is_failure
        while self._answers[0][0] < now - WINDOW:
            self._failed -= self._answers.popleft()[1]
        return is_failure and len(self._answers) >= LEAST and self._failed >= SHARE * len(self._answers)

    def _open(self, rest: timedelta, trouble: str) -> None:
        seconds = max(rest.total_seconds(), 0.0)
        self._until = time.monotonic() + seconds
        self._trouble = trouble
        self._set_timer(seconds)

    def _close(self) -> None:
        self._until = None
        self._trouble = ""
        self._failures = self._failed = 0
        self._answers.clear()
        if self._timer:
            self._timer.cancel()
        self.on_change()

    def _set_timer(self, seconds: float) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds + 0.001, self.on_change)
