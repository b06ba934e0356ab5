"""A worker that is told to stop while Postgres holds on to what it commits."""

import asyncio
import dataclasses
from datetime import timedelta

import pytest

from postroad import Pipeline, Settings, Task
from postroad.stages import consumer as consumer_module
from postroad.testing.traffic import until
from tests.integration.line import open_line


async def test_a_commit_that_hangs_keeps_no_worker_from_stopping(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "CLEAN_UP", 0.2)
    travel = Pipeline("travel")
    gate = asyncio.Event()

    @travel.stage()
    async def ride(task: Task) -> int:
        await gate.wait()
        return task.attempt

    async with open_line(dataclasses.replace(settings, grace=timedelta()), travel) as line:
        worker = line.work()
        (task_id,) = await line.submit({})

        async def hangs() -> bool:
            return bool(
                await line.road.ask(
                    "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
                )
            )

        async def runs() -> bool:
            return bool(worker._consumers[0].running)

        await until(runs)
        async with line.road.engine.begin() as other:
            await other.exec_driver_sql("select from postroad.task for update")
            gate.set()
            await until(hangs)
            async with asyncio.timeout(20):
                await line.stop(worker)
            assert await line.are_parked("ride")

        line.work()
        assert await line.are_finished() == {"completed": 1}
        run = await line.run_of(task_id, "ride")
        assert run is not None
        assert (run.status, run.attempts) == ("done", 1)
        assert await line.violated() == {}
