"""Accept tasks: into Postgres first, then the answer; once for each idempotency key.

Whatever is submitted while a commit runs shares the next one, so a thousand clients at once cost a few commits.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ..core.batching import GroupCommit
from ..core.database import Statements, is_transient

GROUP = 1000
"""Tasks that share one commit at most."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One task to be accepted. ``payload`` and ``labels`` are JSON text, checked; ``traceparent`` is a valid one.

    Without ``key`` every submission is a new task.
    """

    task_id: UUID
    pipeline: str
    payload: str
    labels: str
    traceparent: str
    key: str | None = None

    @property
    def request_hash(self) -> bytes:
        """SHA-256 of what the client asked for: the same key must not stand for two different requests."""
        text = f"{self.pipeline}\n{self.labels}\n{self.payload}"
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

    async def _accept(self, group: Sequence[Submission]) -> Sequence[Answer]:
        async with self._engine.begin() as connection:
            return await accept(connection, group, self._sql)


async def accept(connection: AsyncConnection, group: Sequence[Submission], sql: Statements) -> list[Answer]:
    """Accept ``group`` in the transaction of ``connection``; the answers are in its order."""
    rows = await connection.exec_driver_sql(sql["accept"], _columns(group))
    answers: dict[int, Answer] = {}
    left: list[int] = []
    for row in rows:
        place, submission = row.place - 1, group[row.place - 1]
        if not row.is_known:
            answers[place] = UnknownPipeline(submission.pipeline)
        elif row.created_at is not None:
            answers[place] = Accepted(submission.task_id, submission.pipeline, row.created_at, submission.traceparent)
        else:
            left.append(place)
    if left:
        answers |= await _replay(connection, {place: group[place] for place in left}, sql)
    return [answers[place] for place in range(len(group))]


async def _replay(
    connection: AsyncConnection, submissions: Mapping[int, Submission], sql: Statements
) -> dict[int, Answer]:
    """The answers for submissions whose keys were taken, from what the keys stand for."""
    parameters = {
        "pipeline": [submission.pipeline for submission in submissions.values()],
        "key": [submission.key for submission in submissions.values()],
    }
    rows = await connection.exec_driver_sql(sql["find_keys"], parameters)
    known = {(row.pipeline, row.key): row for row in rows}
    answers: dict[int, Answer] = {}
    for place, submission in submissions.items():
        row = known.get((submission.pipeline, submission.key))
        if row is None:
            raise TimeoutError("an idempotency key was removed while it was asked for; try again")
        if row.request_hash != submission.request_hash:
            answers[place] = KeyTaken(submission.key or "", row.task_id)
        else:
            answers[place] = Accepted(
                row.task_id,
                row.pipeline,
                row.created_at,
                row.traceparent or submission.traceparent,
                is_replay=True,
            )
    return answers


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
