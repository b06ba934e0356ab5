"""A database with a pipeline deployed, and the outcomes that workers would commit to it, without workers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from postroad import Pipeline, Reject, Settings, Task
from postroad.core.database import make_engine, metadata, task_table
from postroad.core.jsontext import encode
from postroad.core.outcome import Completed, Handed, Outcome
from postroad.core.task import new_task_id
from postroad.core.telemetry import continued
from postroad.intake.submit import Submitter
from postroad.outbox.audit import audit, journey
from postroad.outbox.submit import Accepted, Submission
from postroad.stages.deploy import Deployment, deploy
from postroad.stages.ledger import Attempt, Ledger, Settled


def pipeline(name: str = "travel", *, priorities: bool = False, **after: str | Sequence[str]) -> Pipeline:
    """A pipeline whose stages and what they wait for are given: ``pipeline(pack=(), ride="pack")``."""
    made = Pipeline(name, priorities=priorities)
    for stage, before in after.items():

        @made.stage(stage, after=before, retries=2)
        async def handler(task: Task) -> None: ...

    return made


TRAVEL = pipeline(pack=(), ride="pack", rest="pack", arrive=("ride", "rest"))
"""Two stages side by side, and one that waits for both."""


@dataclass(frozen=True, slots=True)
class Road:
    """What can happen to tasks, done by the code that does it."""

    engine: AsyncEngine
    settings: Settings

    async def deploy(self, pipeline: Pipeline = TRAVEL, *, force: bool = False) -> Deployment:
        """Make ``pipeline`` the one in force."""
        async with self.engine.begin() as connection:
            return await deploy(connection, pipeline, self.settings.schema, force=force)

    async def accept(self, pipeline: Pipeline = TRAVEL, *, payload: Any = None, key: str | None = None) -> UUID:
        """Accept a task."""
        submission = Submission(new_task_id(), pipeline.name, encode(payload), "{}", continued(None), key)
        answer = await Submitter(self.engine, self.settings.schema).submit(submission)
        assert isinstance(answer, Accepted)
        return answer.task_id

    async def commit(
        self, task_id: UUID, stage: str, outcome: Outcome | None = None, *, pipeline: Pipeline = TRAVEL
    ) -> Settled:
        """Commit an attempt of ``stage``: done, unless ``outcome`` is another."""
        declared = pipeline.graph()[stage]
        ledger = Ledger(self.engine, self.settings.schema, "host:1:00000000")
        work = (await ledger.load(declared, [task_id]))[task_id]
        return await ledger.commit(Attempt(declared, work, outcome or Completed('{"by":"test"}'), datetime.now(UTC)))

    async def complete(self, task_id: UUID, pipeline: Pipeline = TRAVEL) -> None:
        """Commit all stages of a task as done, in the order in which they can be."""
        for stage in pipeline.graph():
            await self.commit(task_id, stage, pipeline=pipeline)

    async def ask(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement in a transaction of its own; its rows, if it has any."""
        async with self.engine.begin() as connection:
            result = await connection.execute(text(statement), parameters)
            return [tuple(row) for row in result] if result.returns_rows else []

    async def task(self, task_id: UUID, *columns: str) -> tuple[Any, ...]:
        """These columns of a task's row."""
        query = select(*(task_table.c[name] for name in columns)).where(task_table.c.task_id == task_id)
        async with self.engine.connect() as connection:
            return tuple((await connection.execute(query)).one())

    async def events(self, task_id: UUID) -> list[str]:
        """A task's journey, as ``type`` or ``type:stage``."""
        async with self.engine.connect() as connection:
            steps = await journey(connection, task_id, self.settings.schema)
        return [f"{step.type}:{step.stage}" if step.stage else step.type for step in steps]

    async def until_waiting(self, count: int) -> None:
        """Return once so many statements on this database wait for other transactions."""
        statement = (
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        while (await self.ask(statement))[0][0] < count:  # noqa: ASYNC110 - Postgres tells nobody
            await asyncio.sleep(0.01)

    async def violated(self) -> dict[str, int]:
        """The invariants that do not hold, each with its count of violations."""
        engine = self.engine.execution_options(isolation_level="REPEATABLE READ")
        async with engine.connect() as connection:
            findings = await audit(connection, self.settings.schema)
        return {finding.name: finding.violations for finding in findings if finding.violations}

    async def count(self, *tables: str) -> dict[str, int]:
        """How many rows each of these tables has; by default those that a submission writes."""
        async with self.engine.connect() as connection:
            return {
                name: await connection.scalar(select(func.count()).select_from(metadata.tables[f"postroad.{name}"]))
                or 0
                for name in tables or ("task", "outbox", "intake_key")
            }


@asynccontextmanager
async def open_road(settings: Settings, *pipelines: Pipeline) -> AsyncIterator[Road]:
    """A road in ``settings``' database, with ``pipelines`` deployed."""
    engine = make_engine(settings, application="postroad tests")
    try:
        made = Road(engine, settings)
        for one in pipelines:
            await made.deploy(one)
        yield made
    finally:
        await engine.dispose()


NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


async def attempt(
    road: Road,
    task_id: UUID,
    stage: str,
    outcome: Outcome | Handed | None = None,
    *,
    pipeline: Pipeline = TRAVEL,
    error: str | None = None,
    at: datetime = NOON,
) -> None:
    """Commit an attempt of ``stage`` that was asked for 2 s before ``at``, began then and took 3 s."""
    declared = pipeline.graph()[stage]
    ledger = Ledger(road.engine, road.settings.schema, "host:1:00000000")
    work = replace((await ledger.load(declared, [task_id]))[task_id], asked_at=at - timedelta(seconds=2), due=None)
    ended_at = at + timedelta(seconds=3)
    made = Attempt(declared, work, outcome or Completed('{"by":"test"}'), at, error, ended_at=ended_at)
    assert (await ledger.commit(made)).verdict is not None


async def die(road: Road, *stages: str, reason: str = "no road") -> UUID:
    """A task of which these stages are dead letters."""
    task_id = await road.accept()
    await road.commit(task_id, "pack")
    for stage in stages:
        await road.commit(task_id, stage, Reject(reason))
    return task_id
