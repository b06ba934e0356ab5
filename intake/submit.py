"""Accept what comes over HTTP: into Postgres first, then the answer.

Whatever is submitted while a commit runs shares the next one, so a thousand clients at once cost a few commits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from psycopg.errors import LockNotAvailable
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from ..core.batching import GroupCommit
from ..core.database import is_transient
from ..outbox.submit import (
    Answer,
    Invalid,
    KeyTaken,
    Refusal,
    Submission,
    TaskTaken,
    UnknownPipeline,
    accept,
)
from .problems import Fault, Problem, invalid

GROUP = 1000
"""Tasks that share one commit at most."""

PATIENCE, PATIENCE_OF_MANY = "1s", "200ms"
"""How long a commit waits for a key that somebody's own transaction has submitted: that may stay open for hours, and
everybody else's tasks would wait with it. A commit of many is then split, until the key's task stands alone."""


@dataclass(frozen=True, slots=True)
class KeyHeld:
    """A transaction that has not ended has submitted under the key; nothing was written."""

    key: str


class Submitter:
    """Accepts submissions, many in a commit."""

    def __init__(self, engine: AsyncEngine, schema: str) -> None:
        self._engine = engine
        self._schema = schema
        self._group: GroupCommit[Submission, Answer] = GroupCommit(
            self._accept, limit=GROUP, is_transient=_concerns_all
        )

    async def submit(self, submission: Submission) -> Answer | KeyHeld:
        """Accept ``submission``; when this returns ``Accepted`` it is committed.

        Raises what the driver raises when Postgres is away. Nobody knows then whether it was accepted: submit
        again, with the same key.
        """
        try:
            return await self._group.submit(submission)
        except DBAPIError as error:
            if (refusal := _refusal(submission, error)) is None:
                raise
            return refusal

    async def submit_many(self, submissions: Sequence[Submission]) -> list[Answer | KeyHeld | Exception]:
        """Accept ``submissions``, sharing commits: in their order the answers, or what ``submit`` would raise."""
        return [
            (_refusal(submission, answer) or answer) if isinstance(answer, Exception) else answer
            for submission, answer in zip(submissions, await self._group.submit_all(submissions), strict=True)
        ]

    async def cancel(self, *, within: float) -> None:
        """End the commit that runs, before the engine is disposed of; wait at most ``within`` seconds."""
        await self._group.cancel(within=within)

    async def _accept(self, group: Sequence[Submission]) -> Sequence[Answer]:
        async with self._engine.begin() as connection:
            patience = PATIENCE if len(group) == 1 else PATIENCE_OF_MANY
            return await accept(connection, group, self._schema, patience=patience)


def problem_of(answer: Refusal | KeyHeld) -> Problem:
    """The problem that a client is told of instead of its task."""
    match answer:
        case UnknownPipeline(pipeline):
            return invalid(Fault(f"there is no pipeline {pipeline[:63]!r}; postroad deploy makes one", "/pipeline"))
        case KeyTaken(key, task_id):
            return Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "key-reused",
                f"the idempotency key {key!r} stands for task {task_id}, which was submitted with other content",
                members={"task_id": str(task_id)},
            )
        case TaskTaken(task_id):
            return Problem(HTTPStatus.CONFLICT, "task-exists", f"there is another task {task_id}")
        case KeyHeld(key):
            return Problem(
                HTTPStatus.CONFLICT,
                "key-in-flight",
                f"a task is being submitted under the key {key!r} by a transaction that has not ended; try again",
                headers={"Retry-After": "2"},
            )
        case Invalid(member, detail):
            return invalid(Fault(detail, f"/{member}"))


def _refusal(submission: Submission, error: Exception) -> TaskTaken | KeyHeld | None:
    """What ``error`` says of ``submission``; ``None`` if that is nobody's business but ours."""
    if isinstance(error, IntegrityError) and "task_pkey" in str(error.orig):
        return TaskTaken(submission.task_id)
    return KeyHeld(submission.key or str(submission.task_id)) if _is_held(error) else None


def _concerns_all(error: BaseException) -> bool:
    """True if a commit failed for no fault of a single one of its tasks. A key that is held is the fault of one."""
    return is_transient(error) and not _is_held(error)


def _is_held(error: BaseException) -> bool:
    return isinstance(error, DBAPIError) and isinstance(error.orig, LockNotAvailable)
