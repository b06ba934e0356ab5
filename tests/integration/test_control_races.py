"""A person and a worker at one task at once: whoever is second decides on what the first has left."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from postroad import Reject
from postroad.core.outcome import Completed, Outcome
from postroad.intake.cancel import cancel
from postroad.intake.dead_letters import list_dead_letters, requeue
from postroad.intake.retry import retry_from
from postroad.stages.ledger import Attempt, Ledger
from tests.integration.road import TRAVEL, Road

Act = Callable[[AsyncConnection], Awaitable[object]]


@asynccontextmanager
async def meanwhile(road: Road, act: Act) -> AsyncIterator[AsyncConnection]:
    """The block's transaction has locked what ``act`` waits for, in another one; it commits, and then ``act`` does."""

    async def other() -> None:
        async with road.engine.begin() as connection:
            await act(connection)

    async with road.engine.begin() as connection:
        yield connection
        waiting = asyncio.create_task(other())
        await road.until_waiting(1)
    await waiting


async def commit(road: Road, connection: AsyncConnection, task_id: UUID, stage: str, outcome: Outcome) -> None:
    """What a worker commits, in a transaction that stays open."""
    declared = TRAVEL.graph()[stage]
    ledger = Ledger(road.engine, road.settings.schema, "host:1:00000000")
    work = (await ledger.load(declared, [task_id]))[task_id]
    settled = await ledger.commit_within(connection, Attempt(declared, work, outcome, datetime.now(UTC)))
    assert settled.verdict


async def packed(road: Road) -> UUID:
    """A task whose first stage is done."""
    task_id = await road.accept()
    await road.commit(task_id, "pack")
    return task_id


async def test_a_stage_that_succeeds_before_a_retry_runs_again(road: Road) -> None:
    task_id = await packed(road)

    async with meanwhile(road, lambda c: retry_from(c, task_id, "pack", road.settings.schema, by="ada")) as connection:
        await commit(road, connection, task_id, "ride", Completed("1"))

    assert await road.task(task_id, "status", "stages_done") == ("in_progress", [])
    assert await road.count("stage_run") == {"stage_run": 0}
    assert await road.violated() == {}


async def test_a_stage_that_dies_beside_a_retried_one_keeps_the_task_failed(road: Road) -> None:
    task_id = await packed(road)
    await road.commit(task_id, "ride", Reject("no road"))

    async with meanwhile(road, lambda c: retry_from(c, task_id, "ride", road.settings.schema, by="ada")) as connection:
        await commit(road, connection, task_id, "rest", Reject("no inn"))

    assert await road.task(task_id, "status") == ("failed",)
    assert await road.violated() == {}


async def test_a_stage_that_dies_before_its_task_is_cancelled_leaves_no_dead_letter_open(road: Road) -> None:
    task_id = await packed(road)

    async with meanwhile(road, lambda c: cancel(c, [task_id], road.settings.schema, by="ada")) as connection:
        await commit(road, connection, task_id, "ride", Reject("no road"))

    assert await road.task(task_id, "status") == ("cancelled",)
    assert await road.ask("select resolution from postroad.dead_letter") == [("discarded",)]
    assert await road.violated() == {}


async def test_a_stage_that_is_retried_before_it_is_requeued_is_requeued_no_more(road: Road) -> None:
    task_id = await packed(road)
    await road.commit(task_id, "ride", Reject("no road"))
    async with road.engine.connect() as connection:
        ids = [letter["dead_letter_id"] for letter in await list_dead_letters(connection)]

    async with meanwhile(road, lambda c: requeue(c, ids, road.settings.schema, by="bob")) as connection:
        await retry_from(connection, task_id, "ride", road.settings.schema, by="ada")

    assert await road.ask("select resolved_by from postroad.dead_letter") == [("ada",)]
    assert "StageRequeued:ride" not in await road.events(task_id)
    assert await road.violated() == {}
