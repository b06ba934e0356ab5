"""The registry of processes: each writes into a row of its own what it is, what it does, and that it lives.

It is for people, and for ``explain``: nothing is decided by it. So a process that cannot write its row works on.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from importlib.metadata import version
from types import TracebackType
from typing import Self
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from ..core.database import Statements, is_transient
from ..core.errors import first_line

log = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between two writes."""

FORGET = 720
"""After so many writes, an hour's, rows of processes that are long gone are removed."""

RUNNING = 100
"""Attempts that a row tells of at most."""

PATIENCE = 1.0
"""Seconds that a process which stops waits until it has said so."""


class Role(StrEnum):
    """What a process is; the words of ``process.role``."""

    INTAKE = "intake"
    RELAY = "relay"
    STAGE = "stage"


@dataclass(frozen=True, slots=True)
class Running:
    """An attempt that is being made."""

    task_id: UUID
    stage: str
    attempt: int
    since: datetime


def process_name() -> str:
    """``<host>:<pid>:<8 hex>``: new at every start, so that two processes never share what is pending."""
    return f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"


class Registration:
    """The row of this process, for as long as the block lasts: ``async with Registration(…):``.

    ``stages`` are what a stage process runs, as ``pipeline.stage``; ``running`` says what it does just now.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        schema: str,
        role: Role,
        *,
        name: str | None = None,
        stages: Iterable[str] = (),
        running: Callable[[], Iterable[Running]] = tuple,
    ) -> None:
        self.name = name or process_name()
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._sql = Statements(__package__ or "", schema)
        self._constant = {
            "process": self.name,
            "role": str(role),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": version("postroad"),
            "stages": sorted(stages),
        }
        self._running = running
        self._is_leading = False
        self._is_stopped = False
        self._is_over = False
        self._has_warned = False
        self._news = asyncio.Event()
        self._started_at = time.monotonic()
        self._writing: asyncio.Task[None] | None = None

    def set_leading(self, is_leading: bool) -> None:
        """Say from now on, and at once, whether this is the relay that works."""
        if is_leading is not self._is_leading:
            self._is_leading = is_leading
            self._news.set()

    async def __aenter__(self) -> Self:
        self._started_at = time.monotonic()
        self._writing = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Say that this process has stopped, unless an error ends it: a relay is stopped by its cancellation."""
        assert self._writing is not None
        if error is None or isinstance(error, asyncio.CancelledError):
            self._is_stopped = True
            self._is_leading = False
        self._is_over = True
        self._news.set()
        # Not for ever, should Postgres hang; nor is it cut off at once: a connection that is being made would be left
        # open, and Postgres waits a minute for its password.
        await asyncio.wait([self._writing], timeout=PATIENCE)
        self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)

    async def _run(self) -> None:
        writes = 0
        while True:
            self._news.clear()
            is_last = self._is_over
            if self._is_stopped or not is_last:
                await self._write(forget=writes % FORGET == 0)
            if is_last:
                return
            writes += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL):
                    await self._news.wait()

    async def _write(self, *, forget: bool) -> None:
        oldest = sorted(self._running(), key=lambda one: one.since)[:RUNNING]
        running = [
            {"task_id": str(one.task_id), "stage": one.stage, "attempt": one.attempt, "since": one.since.isoformat()}
            for one in oldest
        ]
        parameters = self._constant | {
            "is_leading": self._is_leading,
            "running": json.dumps(running),
            "uptime": timedelta(seconds=time.monotonic() - self._started_at),
            "is_stopped": self._is_stopped,
        }
        try:
            async with self._engine.connect() as connection:
                await connection.exec_driver_sql(self._sql["register"], parameters)
                if forget:
                    await connection.exec_driver_sql(self._sql["forget_processes"])
        except Exception as error:
            if is_transient(error) or self._has_warned:
                log.debug("the registry of processes pauses: %s", first_line(error))
            else:
                # Such as a role without the right to: nothing else needs this row.
                self._has_warned = True
                log.warning("this process is not in the registry: %s", first_line(error))
