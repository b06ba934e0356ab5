"""Accept what comes over HTTP: into Postgres first, then the answer.

Whatever is submitted while a commit runs shares the next one, so a thousand clients at once cost a few commits.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg.errors import LockNotAvailable
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from ..core.batching import GroupCommit
from ..core.database import is_transient
from ..outbox.submit import Answer, Submission, TaskTaken, accept

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
        except IntegrityError as error:
            if "task_pkey" in str(error.orig):
                return TaskTaken(submission.task_id)
            raise
        except DBAPIError as error:
            if _is_held(error):
                return KeyHeld(submission.key or str(submission.task_id))
            raise

    async def submit_many(self, submissions: Sequence[Submission]) -> list[Answer | KeyHeld]:
        """Accept ``submissions``, sharing commits; the answers are in their order. Raises like ``submit``."""
        return await asyncio.gather(*(self.submit(submission) for submission in submissions))

    async def cancel(self, *, within: float) -> None:
        """End the commit that runs, before the engine is disposed of; wait at most ``within`` seconds."""
        await self._group.cancel(within=within)

    async def _accept(self, group: Sequence[Submission]) -> Sequence[Answer]:
        async with self._engine.begin() as connection:
            patience = PATIENCE if len(group) == 1 else PATIENCE_OF_MANY
            return await accept(connection, group, self._schema, patience=patience)


def _concerns_all(error: BaseException) -> bool:
    """True if a commit failed for no fault of a single one of its tasks. A key that is held is the fault of one."""
    return is_transient(error) and not _is_held(error)


def _is_held(error: BaseException) -> bool:
    return isinstance(error, DBAPIError) and isinstance(error.orig, LockNotAvailable)
