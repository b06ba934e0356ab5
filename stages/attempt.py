"""One attempt of a stage, from the loaded work to the committed outcome. Knows handlers and Postgres, no Redis."""

import asyncio
import contextlib
import logging
import math
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ..core.backoff import Pause
from ..core.database import is_transient, lost_connection
from ..core.errors import first_line
from ..core.jsontext import encode
from ..core.outcome import Completed, Expired, Handed, Outcome, Reject, Retry, lease_of
from ..core.pipeline import Stage
from ..core.task import Task
from .ledger import Attempt, Kind, Ledger, Settled, Work
from .runner import NO_TRAIL, HandlerThreads, Run, Trail, run_handler

log = logging.getLogger(__name__)

LOST_CONNECTIONS = 5
"""How often an attempt loses its connection to Postgres, and begins anew uncounted, until it is itself suspected."""

T = TypeVar("T")


class Attempts:
    """Runs attempts of ``stage``, and commits what they come to. While Postgres is away it waits."""

    def __init__(self, stage: Stage, ledger: Ledger, engine: AsyncEngine, threads: HandlerThreads) -> None:
        self._stage = stage
        self._ledger = ledger
        self._engine = engine
        self._threads = threads

    async def run(self, work: Work) -> Settled:
        """Run the handler on ``work`` once, and commit its outcome: alone in its transaction, or with others'."""
        started_at = _now()
        if work.answer is not None:
            return await self._conclude(work, reported(work.answer), started_at, is_counted=True)
        if work.seconds_left() <= 0:
            return await self._conclude(work, Expired(work.expired()), started_at)
        if self._stage.hands_over:
            return await self._hand_over(work, self._stage.hands_over, started_at)
        if self._stage.transaction is None:
            came_to: Run | Settled = await run_handler(
                self._stage, work.task(self._stage), self._threads, within=work.seconds_left(), is_anew=work.is_anew
            )
        else:
            came_to = await self._run_in_transaction(work, started_at)
        if isinstance(came_to, Settled):
            return came_to
        return await self._conclude(work, came_to.outcome, started_at, error=came_to.error, trail=came_to.trail)

    async def _hand_over(self, work: Work, within: timedelta, started_at: datetime) -> Settled:
        """Hand the work to a service that reports later. The lease is committed first: the report may come at once."""
        if work.is_handed and work.attempts > self._stage.retries:
            reason = f"its service has not reported within {within}"
            return await self._conclude(work, Reject(reason), started_at, is_counted=True)
        token = secrets.token_urlsafe(24)
        if (left := work.seconds_left()) < within.total_seconds():
            within = timedelta(seconds=left)
        handed = Handed(lease_of(token), within)
        settled = await self._conclude(work, handed, started_at)
        if settled.verdict is None or settled.verdict.kind is not Kind.WAITING:
            return settled
        run = await run_handler(
            self._stage, work.task(self._stage, lease=token), self._threads,
            within=work.seconds_left(), is_anew=work.is_anew,
        )  # fmt: skip
        loaded = await persist("loading", lambda: self._ledger.load(self._stage, [work.task_id]))
        fresh = loaded.get(work.task_id)
        if fresh is None or not fresh.is_open:
            return Settled(None)
        if fresh.answer is not None:
            # It has reported already; that counts, even if its first answer was lost on the way.
            return await self._conclude(fresh, reported(fresh.answer), _now(), is_counted=True, trail=run.trail)
        if isinstance(run.outcome, Completed):
            return settled
        return await self._conclude(fresh, run.outcome, _now(), error=run.error, is_counted=True, trail=run.trail)

    async def reject(self, work: Work, reason: str) -> Settled:
        """Make a dead letter of ``work`` without running it."""
        return await self._conclude(work, Reject(reason), _now())

    async def _run_in_transaction(self, work: Work, started_at: datetime) -> Run | Settled:
        """Run a handler that takes a connection; its success commits with what it wrote, anything else undoes that.

        If the server is lost on the way nobody knows what was committed: look, and begin anew if it was not.
        """
        pause = Pause()
        for _ in range(LOST_CONNECTIONS):
            async with self._connection() as connection:
                run, is_lost = await self._run_over(connection, work, started_at)
            if not is_lost:
                return run
            loaded = await persist("loading", lambda: self._ledger.load(self._stage, [work.task_id]))
            fresh = loaded.get(work.task_id)
            if fresh is None or not fresh.is_open:
                return Settled(None)
            await asyncio.sleep(pause.next())
        return run

    async def _run_over(
        self, connection: AsyncConnection, work: Work, started_at: datetime
    ) -> tuple[Run | Settled, bool]:
        """Run the handler over ``connection``; what it came to, and whether the server was lost on the way."""
        trail = NO_TRAIL
        try:
            await connection.begin()
            run = await run_over(
                connection, self._stage, work.task(self._stage), self._threads,
                within=work.seconds_left(), is_anew=work.is_anew,
            )  # fmt: skip
            trail = run.trail
            if isinstance(run.outcome, Completed):
                attempt = Attempt(self._stage, work, run.outcome, started_at, trail=trail)
                return await self._commit_within(connection, attempt), False
            return run, connection.invalidated and _tells_of_loss(run.outcome)
        except Exception as error:
            run = Run(Retry(f"the transaction failed: {first_line(error)}"), trail=trail)
            return run, connection.invalidated and _tells_of_loss(error)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        # Not ``connection.close()``: that, when cancelled, leaves the connection to the garbage collector.
        stack = contextlib.AsyncExitStack()
        connection = await persist("connecting", lambda: stack.enter_async_context(self._engine.connect()))
        try:
            yield connection
        finally:
            # If the server is lost only now, it has rolled back by itself.
            with contextlib.suppress(DBAPIError):
                await stack.aclose()

    async def _commit_within(self, connection: AsyncConnection, attempt: Attempt) -> Settled:
        settled = await self._ledger.commit_within(connection, attempt)
        if settled.verdict is None:
            await connection.rollback()
        else:
            await connection.commit()
        return settled

    async def _conclude(
        self,
        work: Work,
        outcome: Outcome | Handed,
        started_at: datetime,
        *,
        error: str | None = None,
        is_counted: bool = False,
        trail: Trail = NO_TRAIL,
    ) -> Settled:
        """Commit an outcome with the others of this moment."""
        attempt = Attempt(self._stage, work, outcome, started_at, error, is_counted, trail)
        try:
            return await persist("committing", lambda: self._ledger.commit(attempt))
        except Exception as refusal:
            # Postgres refused this very outcome, and would refuse it again: say so where a person looks.
            log.exception("an outcome cannot be stored", extra={"task_id": str(work.task_id)})
            refused = Reject(f"its outcome cannot be stored: {first_line(refusal)}")
        attempt = Attempt(self._stage, work, refused, started_at, is_counted=is_counted)
        return await persist("committing", lambda: self._ledger.commit(attempt))


def reported(answer: Mapping[str, Any]) -> Outcome:
    """The outcome that a service has reported; the intake has checked it."""
    if answer["outcome"] == "completed":
        return Completed(encode(answer.get("result")))
    reason = answer.get("reason") or "its service reported a failure"
    if answer["outcome"] == "rejected":
        return Reject(reason)
    return Retry(reason, after=answer.get("after"))


async def run_over(
    connection: AsyncConnection,
    stage: Stage,
    task: Task,
    threads: HandlerThreads,
    *,
    within: float = math.inf,
    is_anew: bool = False,
) -> Run:
    """Run a handler that takes a connection over the open transaction of ``connection``, which stays open.

    A handler that ended it itself is rejected: another attempt would commit its writes once more.
    """
    commits: list[object] = []

    def note(committed: object) -> None:
        commits.append(committed)

    event.listen(connection.sync_connection, "commit", note)
    try:
        run = await run_handler(stage, task, threads, connection, within=within, is_anew=is_anew)
    finally:
        event.remove(connection.sync_connection, "commit", note)
    if commits:
        reason = "the handler committed its transaction; it must leave it open, for postroad to commit"
        return Run(Reject(reason), run.error, run.trail)
    return run


async def persist(doing: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Do ``work`` with Postgres, again and again while it is away."""
    pause = Pause()
    while True:
        try:
            return await work()
        except Exception as error:
            if not is_transient(error):
                raise
            if pause.is_worth_a_line() and lost_connection(error):
                log.warning("Postgres: %s pauses: %s", doing, first_line(error))
        await asyncio.sleep(pause.next())


def _tells_of_loss(error: BaseException | None) -> bool:
    """True if ``error``, or what led to it, is that the connection to Postgres broke.

    A connection is of no use either after a query of it was cancelled by a timeout; but then nobody lost it.
    """
    while error is not None:
        if isinstance(error, DBAPIError) and error.connection_invalidated:
            return True
        error = error.__cause__ or error.__context__
    return False


def _now() -> datetime:
    return datetime.now(UTC)
