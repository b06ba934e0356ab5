"""A crash that is to come: at which step of an attempt the worker is gone.

A worker has no hook for this. One that is to crash is given other attempts, that stop at the step and go no further;
then it is killed.
"""

import asyncio
from datetime import datetime
from enum import Enum
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.outcome import Completed, Handed, Outcome
from ..core.pipeline import Stage
from ..stages.attempt import Attempts
from ..stages.consumer import Consumer
from ..stages.ledger import Attempt, Kind, Settled, Work
from ..stages.runner import NO_TRAIL, Trail


class Step(Enum):
    """Where in an attempt the worker dies."""

    BEFORE_COMMITTING = "before the commit"
    BEFORE_ACKNOWLEDGING = "between the commit and the acknowledgement"


class Crash:
    """The worker of ``stage`` dies once, at ``step`` of the next attempt that succeeds."""

    def __init__(self, stage: Stage, step: Step) -> None:
        self.stage = stage
        self.step = step
        self.task_id: UUID | None = None
        """The task whose attempt came to the step first; ``None`` before that."""
        self._struck = asyncio.Event()
        self._over = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Crash of {self.stage.full_name} {self.step.value}: {'happened' if self.happened else 'to come'}>"

    @property
    def happened(self) -> bool:
        """True once the worker is gone and another has taken its place."""
        return self._over.is_set()

    async def wait(self, timeout: float = 30) -> None:
        """Wait until it has happened, ``timeout`` seconds at most; ``TimeoutError`` says that no attempt came to it."""
        try:
            async with asyncio.timeout(timeout):
                await self._over.wait()
        except TimeoutError:
            raise TimeoutError(f"{self.missed()} within {timeout:g} s") from None

    def missed(self) -> str:
        """What is wrong if it has not happened."""
        return f"the worker of {self.stage.full_name} did not crash {self.step.value}: no attempt of it succeeded"

    async def until_struck(self) -> None:
        """Wait until an attempt has come to the step."""
        await self._struck.wait()

    async def strike(self, task_id: UUID) -> None:
        """This attempt is at the step: it goes no further, until its worker is killed."""
        self.task_id = self.task_id or task_id
        self._struck.set()
        await asyncio.Event().wait()

    def conclude(self) -> None:
        """The worker is gone, and another one works."""
        self._over.set()


class DoomedAttempts(Attempts):
    """Attempts of which the first that succeeds comes to ``crash``. All others end as usual, until the worker dies."""

    def __init__(self, doomed: Attempts, crash: Crash) -> None:
        super().__init__(doomed._stage, doomed._ledger, doomed._engine, doomed._threads)
        self._crash = crash

    async def run(self, work: Work) -> Settled:
        """Run the handler on ``work`` once, and commit its outcome, unless the worker dies before that."""
        settled = await super().run(work)
        if self._crash.step is Step.BEFORE_ACKNOWLEDGING and settled.verdict and settled.verdict.kind is Kind.DONE:
            await self._crash.strike(work.task_id)
        return settled

    async def _commit_within(self, connection: AsyncConnection, attempt: Attempt) -> Settled:
        if self._crash.step is Step.BEFORE_COMMITTING:
            await self._crash.strike(attempt.work.task_id)
        return await super()._commit_within(connection, attempt)

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
        if self._crash.step is Step.BEFORE_COMMITTING and isinstance(outcome, Completed):
            await self._crash.strike(work.task_id)
        return await super()._conclude(work, outcome, started_at, error=error, is_counted=is_counted, trail=trail)


def doom(consumer: Consumer, crash: Crash) -> None:
    """Let ``crash`` strike among the attempts that ``consumer`` begins from now on."""
    consumer._attempts = DoomedAttempts(consumer._attempts, crash)


def succeed(consumer: Consumer) -> None:
    """Let ``consumer``, which has just been started, look for what dead workers left at once.

    Others wait, since Redis might have been wiped just now, and all would look dead.
    """
    consumer._fetcher._may_reclaim_at = 0.0
