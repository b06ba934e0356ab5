"""Accept tasks: into Postgres first, then the answer; once for each idempotency key.

Whatever is submitted while a commit runs shares the next one, so a thousand clients at once cost a few commits.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ..core.batching import GroupCommit
from ..core.database import Statements, is_transient

GROUP = 1000
"""Tasks that share one commit at most."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One task to be accepted. ``payload`` and ``labels`` are JSON text, checked; ``traceparent`` is a valid one.

    Without ``key`` every submission is a new task. ``has_own_id``: the client chose ``task_id``.
    """

    task_id: UUID
    pipeline: str
    payload: str
    labels: str
    traceparent: str
    key: str | None = None
    has_own_id: bool = False

    @property
    def request_hash(self) -> bytes:
        """SHA-256 of what the client asked for: the same key must not stand for two different requests."""
        text = f"{self.pipeline}\n{self.labels}\n{self.payload}\n{self.task_id if self.has_own_id else ''}"
        return hashlib.sha256(text.encode()).digest()

    def traced(self, traceparent: str) -> "Submission":
        """The same submission, under another span of its trace."""
        return replace(self, traceparent=traceparent) if traceparent != self.traceparent else self


@dataclass(frozen=True, slots=True)
class Accepted:
    """The task is in Postgres. ``is_replay``: it was already, accepted under the same key."""

    task_id: UUID
    pipeline: str
    created_at: datetime
    traceparent: str
    is_replay: bool = False


@dataclass(frozen=True, slots=True)
class UnknownPipeline:
    """No such pipeline was deployed; nothing was written."""

    pipeline: str


@dataclass(frozen=True, slots=True)
class KeyTaken:
    """The key stands for a task with other content; nothing was written."""

    key: str
    task_id: UUID


@dataclass(frozen=True, slots=True)
class TaskTaken:
    """The client's own task id stands for another task; nothing was written."""

    task_id: UUID


Answer = Accepted | UnknownPipeline | KeyTaken | TaskTaken


class Submitter:
    """Accepts submissions, many in a commit."""

    def __init__(self, engine: AsyncEngine, schema: str) -> None:
        self._engine = engine
        self._sql = Statements(__package__ or "", schema)
        self._group: GroupCommit[Submission, Answer] = GroupCommit(self._accept, limit=GROUP, is_transient=is_transient)

    async def submit(self, submission: Submission) -> Answer:
        """Accept ``submission``; when this returns ``Accepted`` it is committed.

        Raises what the driver raises when Postgres is away. Nobody knows then whether it was accepted: submit
        again, with the same key.
        """
        try:
            return await self._group.submit(submission)
        except IntegrityError as error:
            if "task_pkey" in str(error.orig):
                return TaskTaken(submission.task_id)
            raise

    async def submit_many(self, submissions: Sequence[Submission]) -> list[Answer]:
        """Accept ``submissions``, sharing commits; the answers are in their order. Raises like ``submit``."""
        return await asyncio.gather(*(self.submit(submission) for submission in submissions))

    async def cancel(self, *, within: float) -> None:
        """End the commit that runs, before the engine is disposed of; wait at most ``within`` seconds."""
        await self._group.cancel(within=within)

    async def _accept(self, group: Sequence[Submission]) -> Sequence[Answer]:
        async with self._engine.begin() as connection:
            return await accept(connection, group, self._sql)


async def accept(connection: AsyncConnection, group: Sequence[Submission], sql: Statements) -> list[Answer]:
    """Accept ``group`` in the transaction of ``connection``; the answers are in its order."""
    rows = await connection.exec_driver_sql(sql["accept"], _columns(group))
    answers: dict[int, Answer] = {}
    taken: dict[int, bool] = {}
    for row in rows:
        place, submission = row.place - 1, group[row.place - 1]
        if not row.is_known:
            answers[place] = UnknownPipeline(submission.pipeline)
        elif row.created_at is not None:
            answers[place] = Accepted(submission.task_id, submission.pipeline, row.created_at, submission.traceparent)
        else:
            taken[place] = row.is_taken
    if taken:
        keys = await _find_keys(connection, [group[place] for place in taken], sql)
        for place, is_taken in taken.items():
            submission = group[place]
            answers[place] = _refused_or_replayed(
                submission, keys.get((submission.pipeline, submission.key)), is_taken=is_taken
            )
    return [answers[place] for place in range(len(group))]


async def _find_keys(
    connection: AsyncConnection, submissions: Sequence[Submission], sql: Statements
) -> dict[tuple[str, str | None], Row[Any]]:
    parameters = {
        "pipeline": [submission.pipeline for submission in submissions],
        "key": [submission.key for submission in submissions],
    }
    rows = await connection.exec_driver_sql(sql["find_keys"], parameters)
    return {(row.pipeline, row.key): row for row in rows}


def _refused_or_replayed(submission: Submission, known: Row[Any] | None, *, is_taken: bool) -> Answer:
    """The answer to a submission whose key is ``known``, or whose task id ``is_taken``."""
    if known is None:
        if is_taken:
            return TaskTaken(submission.task_id)
        raise TimeoutError("an idempotency key was removed while it was asked for; try again")
    if known.request_hash != submission.request_hash:
        return KeyTaken(known.key, known.task_id)
    traceparent = known.traceparent or submission.traceparent
    return Accepted(known.task_id, known.pipeline, known.created_at, traceparent, is_replay=True)


def _columns(group: Sequence[Submission]) -> dict[str, list[Any]]:
    return {
        "task_id": [submission.task_id for submission in group],
        "pipeline": [submission.pipeline for submission in group],
        "payload": [submission.payload for submission in group],
        "labels": [submission.labels for submission in group],
        "key": [submission.key for submission in group],
        "request_hash": [submission.request_hash for submission in group],
        "traceparent": [submission.traceparent for submission in group],
    }
