"""What people ask of tasks and stages under way: cancel, pause, resume, retry, discard."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from postroad import Pipeline, Reject, Settings, Task
from postroad.core.errors import NotFoundError, RefusedError
from postroad.core.outcome import Reject as RejectOutcome
from postroad.intake.cancel import cancel
from postroad.intake.dead_letters import discard, list_dead_letters, list_groups, requeue
from postroad.intake.pause import set_paused
from postroad.intake.retry import retry_from
from postroad.stages import control as control_module
from postroad.testing.traffic import until
from tests.integration.line import Line, numbers, open_line
from tests.integration.road import Road


@pytest.fixture(autouse=True)
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers hear at once what people ask."""
    monkeypatch.setattr(control_module, "INTERVAL", 0.05)


@asynccontextmanager
async def transaction(road: Road) -> AsyncIterator[AsyncConnection]:
    async with road.engine.begin() as connection:
        yield connection


async def cancelled(road: Road, *tasks: UUID) -> list[UUID]:
    async with transaction(road) as connection:
        return await cancel(connection, tasks, road.settings.schema, by="ann", reason="a test")


async def paused(road: Road, stage: str, is_paused: bool, pipeline: str = "travel") -> bool:
    async with transaction(road) as connection:
        return await set_paused(connection, pipeline, stage, road.settings.schema, paused=is_paused, by="ada")


async def retried(road: Road, task_id: UUID, stage: str) -> list[str]:
    async with transaction(road) as connection:
        return await retry_from(connection, task_id, stage, road.settings.schema, by="ann")


# Cancel


async def test_a_task_that_waits_is_cancelled_and_says_by_whom(road: Road) -> None:
    task = await road.accept()

    assert await cancelled(road, task) == [task]
    assert await road.task(task, "status", "version") == ("cancelled", 2)
    assert (await road.events(task))[-1] == "TaskCancelled"
    (data,) = await road.ask("select data - 'before' - 'after' from postroad.outbox where type = 'TaskCancelled'")
    assert data[0] == {"by": "ann", "reason": "a test"}
    assert await road.violated() == {}


async def test_what_has_ended_is_not_cancelled(road: Road) -> None:
    done, gone = await road.accept(), await road.accept()
    await road.complete(done)
    await cancelled(road, gone)

    assert await cancelled(road, done, gone, uuid4()) == []
    assert await road.task(done, "status") == ("completed",)


async def test_the_dead_letters_of_a_cancelled_task_are_discarded(road: Road) -> None:
    task = await road.accept()
    await road.commit(task, "pack", RejectOutcome("no"))

    await cancelled(road, task)

    assert await road.ask("select resolution, resolved_by from postroad.dead_letter") == [("discarded", "ann")]
    assert await road.violated() == {}


async def test_an_outcome_that_comes_after_the_cancellation_changes_nothing(road: Road) -> None:
    task = await road.accept()
    await road.commit(task, "pack")
    before = await cancelled(road, task)

    settled = await road.commit(task, "ride")

    assert before == [task]
    assert settled.verdict is None
    assert await road.task(task, "status", "stages_done") == ("cancelled", ["pack"])


async def test_a_running_handler_is_ended_and_its_writes_vanish(settings: Settings) -> None:
    pipeline = Pipeline("slow")
    ended = asyncio.Event()
    begun = asyncio.Event()

    @pipeline.stage()
    async def write(task: Task, connection: AsyncConnection) -> None:
        await connection.execute(text("insert into written values (1)"))
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with open_line(settings, pipeline) as line:
        await line.road.ask("create table written (n int)")
        line.work()
        (task,) = await line.submit(None)
        await asyncio.wait_for(begun.wait(), 30)

        await cancelled(line.road, task)
        await asyncio.wait_for(ended.wait(), 10)
        await until(line.is_quiet)

        assert await line.road.ask("select n from written") == []
        assert await line.road.task(task, "status", "version") == ("cancelled", 2)
        assert await line.run_of(task, "write") is None
        assert await line.violated() == {}


# Pause and resume


def counting() -> tuple[Pipeline, list[int]]:
    pipeline = Pipeline("count")
    seen: list[int] = []

    @pipeline.stage(concurrency=4)
    async def see(task: Task) -> None:
        seen.append(task.payload["n"])
        await asyncio.sleep(0.02)

    return pipeline, seen


async def test_a_paused_stage_reads_nothing_and_loses_nothing(settings: Settings) -> None:
    pipeline, seen = counting()
    async with open_line(settings, pipeline) as line:
        line.work()
        await line.submit(*numbers(3))
        await line.are_finished()
        consumer = next(iter(line.workers))._consumers[0]

        assert await paused(line.road, "see", True, "count")
        await until(lambda: _is(consumer._holding.is_closed))
        before = len(seen)
        await line.submit(*numbers(20))
        await until(lambda: _holds_all(line, 20))
        await asyncio.sleep(0.5)
        assert len(seen) == before

        assert await paused(line.road, "see", False, "count")
        assert await line.are_finished() == {"completed": 23}
        assert await line.violated() == {}


async def test_a_pause_lets_what_runs_finish_and_hands_the_rest_back(settings: Settings) -> None:
    pipeline = Pipeline("hold")
    begun, go = asyncio.Event(), asyncio.Event()

    @pipeline.stage(concurrency=2)
    async def hold(task: Task) -> None:
        begun.set()
        await go.wait()

    async with open_line(settings, pipeline) as line:
        line.work()
        await line.submit(*numbers(8))
        await asyncio.wait_for(begun.wait(), 30)
        consumer = next(iter(line.workers))._consumers[0]
        await paused(line.road, "hold", True, "hold")
        await until(lambda: _is(consumer._holding.is_closed))

        go.set()
        await until(lambda: _is(not consumer._holding.entries))
        counts = dict(await line.road.ask("select status, count(*) from postroad.task group by 1"))
        assert 1 <= counts["completed"] <= 2

        await paused(line.road, "hold", False, "hold")
        assert await line.are_finished() == {"completed": 8}
        assert await line.road.ask("select max(attempts) from postroad.stage_run") == [(1,)]


async def test_pausing_twice_changes_nothing_and_an_unknown_stage_is_told(road: Road) -> None:
    assert await paused(road, "pack", True)
    assert not await paused(road, "pack", True)
    with pytest.raises(NotFoundError, match=r"travel\.nowhere"):
        await paused(road, "nowhere", True)


async def _is(value: object) -> bool:
    return bool(value)


async def _holds_all(line: Line, count: int) -> bool:
    return int(await line.client.xlen(line.stream("see"))) >= count


# Retry from a stage


async def test_a_completed_task_runs_again_from_a_stage_and_after(road: Road) -> None:
    task = await road.accept()
    await road.complete(task)

    assert await retried(road, task, "ride") == ["arrive", "ride"]
    assert await road.task(task, "status", "stage_status", "stages_done", "finished_at") == (
        "in_progress",
        "retried_from:ride",
        ["pack", "rest"],
        None,
    )
    assert (await road.events(task))[-1] == "StageRequested:ride"

    await road.commit(task, "ride")
    await road.commit(task, "arrive")
    assert await road.task(task, "status") == ("completed",)
    assert await road.violated() == {}


async def test_a_failed_task_retried_from_before_its_dead_stage_is_in_progress(road: Road) -> None:
    task = await road.accept()
    await road.commit(task, "pack")
    await road.commit(task, "ride", RejectOutcome("no"))

    assert await retried(road, task, "pack") == ["arrive", "pack", "rest", "ride"]
    assert await road.task(task, "status", "stages_done") == ("in_progress", [])
    await road.complete(task)
    assert await road.task(task, "status") == ("completed",)
    assert await road.violated() == {}


async def test_a_retry_beside_a_dead_stage_leaves_the_task_failed(road: Road) -> None:
    task = await road.accept()
    await road.commit(task, "pack")
    await road.commit(task, "ride", RejectOutcome("no"))
    await road.commit(task, "rest")

    assert await retried(road, task, "rest") == ["arrive", "rest"]
    assert await road.task(task, "status") == ("failed",)
    assert await road.violated() == {}


async def test_what_cannot_be_retried_is_told(road: Road) -> None:
    task = await road.accept()
    with pytest.raises(NotFoundError, match="no stage 'nowhere'"):
        await retried(road, task, "nowhere")
    with pytest.raises(NotFoundError, match="no task"):
        await retried(road, uuid4(), "pack")
    await cancelled(road, task)
    with pytest.raises(RefusedError, match="cancelled"):
        await retried(road, task, "pack")
    assert await road.task(task, "version") == (2,)


# Dead letters


async def test_a_discarded_letter_is_resolved_and_its_task_stays_failed(road: Road) -> None:
    task = await road.accept()
    await road.commit(task, "pack", RejectOutcome("no"))
    async with transaction(road) as connection:
        (letter,) = await list_dead_letters(connection)
        ids = [letter["dead_letter_id"]]
        assert await discard(connection, ids, road.settings.schema, by="ann") == [(task, "pack")]
        assert await discard(connection, ids, road.settings.schema, by="bob") == []
        assert await requeue(connection, ids, road.settings.schema, by="bob") == []

    assert await road.task(task, "status") == ("failed",)
    assert (await road.events(task))[-1] == "DeadLetterDiscarded:pack"
    assert await road.violated() == {}


async def test_letters_that_failed_alike_are_one_group(road: Road) -> None:
    for number in range(3):
        await road.commit(await road.accept(), "pack", RejectOutcome(f"order {number} is not known"))
    await road.commit(await road.accept(), "pack", Reject("closed"))

    async with transaction(road) as connection:
        groups = await list_groups(connection, road.settings.schema)

    assert [(group["letters"], group["reason"]) for group in groups] == [(3, "order 2 is not known"), (1, "closed")]
