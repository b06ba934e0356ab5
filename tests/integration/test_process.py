"""The registry of processes: what each says of itself, from its start to its end."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from postroad import Pipeline, Settings, Task
from postroad.core.database import Statements
from postroad.outbox.process import RUNNING, Registration, Role, Running
from postroad.relay.relay import Relay
from postroad.testing.traffic import until
from tests.integration.door import Door
from tests.integration.line import open_line
from tests.integration.road import Road


async def rows(road: Road, role: str) -> list[dict[str, Any]]:
    """What the registry says of the processes of a role, in the order of their start."""
    found = await road.ask(
        "select to_jsonb(known) from postroad.process as known where role = :role order by started_at", role=role
    )
    return [row for (row,) in found]


async def test_a_worker_tells_what_it_runs_and_that_it_has_stopped(settings: Settings) -> None:
    gate, pipeline = asyncio.Event(), Pipeline("travel")

    @pipeline.stage()
    async def pack(task: Task) -> None:
        await gate.wait()

    async with open_line(settings, pipeline) as line:
        worker = line.work()
        (task_id,) = await line.submit(None)

        async def is_running() -> bool:
            worker._registration._news.set()
            found = await rows(line.road, "stage")
            return bool(found and found[0]["running"])

        await until(is_running)
        (row,) = await rows(line.road, "stage")
        gate.set()
        await line.are_finished()
        await line.stop(worker)
        (ended,) = await rows(line.road, "stage")

    (running,) = row.pop("running")
    assert datetime.fromisoformat(running.pop("since")) < datetime.now(UTC)
    assert running == {"task_id": str(task_id), "stage": "pack", "attempt": 1}
    assert (row["process"], row["stages"], row["is_leading"]) == (worker.name, ["travel.pack"], False)
    assert row["stopped_at"] is None
    assert ended["running"] == []
    assert ended["stopped_at"] >= row["seen_at"]


async def test_the_relay_that_works_says_so_and_the_next_one_when_it_takes_over(road: Road) -> None:
    async def leading() -> list[bool]:
        return [row["is_leading"] for row in await rows(road, "relay")]

    async def first_leads() -> bool:
        return await leading() == [True]

    async def second_waits() -> bool:
        return await leading() == [True, False]

    async def second_leads() -> bool:
        return await leading() == [False, True]

    first = asyncio.create_task(Relay(road.settings).run())
    await until(first_leads)
    second = asyncio.create_task(Relay(road.settings).run())
    await until(second_waits)
    first.cancel()
    await asyncio.wait([first])
    await until(second_leads)
    second.cancel()
    await asyncio.wait([second])

    ended = await rows(road, "relay")
    assert [(row["is_leading"], row["stopped_at"] is not None) for row in ended] == [(False, True)] * 2


async def test_each_process_of_the_intake_has_a_row(door: Door) -> None:
    async def is_there() -> bool:
        return bool(await rows(door.road, "intake"))

    await until(is_there)
    (row,) = await rows(door.road, "intake")
    assert (row["stages"], row["is_leading"], row["stopped_at"]) == ([], False, None)


async def test_what_was_not_seen_for_a_day_is_removed_by_the_next_that_starts(road: Road) -> None:
    await road.ask(
        "insert into postroad.process (process, role, host, pid, version, started_at, seen_at)"
        " select name, 'stage', 'h', 1, '0', now() - interval '2 days', now() - age"
        "   from (values ('gone', interval '25 hours'), ('silent', interval '23 hours')) as known (name, age)"
    )

    async with Registration(road.engine, "postroad", Role.INTAKE) as registration:
        pass

    known = await road.ask("select process from postroad.process order by started_at")
    assert known == [("silent",), (registration.name,)]


async def test_of_many_attempts_the_oldest_are_told(road: Road) -> None:
    moments = [datetime(2026, 1, 1, 0, minute % 60, minute // 60, tzinfo=UTC) for minute in range(RUNNING + 20)]
    attempts = [Running(uuid4(), "pack", 1, moment) for moment in reversed(moments)]

    async with Registration(road.engine, "postroad", Role.STAGE, running=lambda: attempts):
        pass

    (row,) = await rows(road, "stage")
    assert [datetime.fromisoformat(one["since"]) for one in row["running"]] == sorted(moments)[:RUNNING]


async def test_a_row_is_written_in_place(road: Road) -> None:
    statement = Statements("postroad.outbox", "postroad")["register"]
    registration = Registration(road.engine, "postroad", Role.STAGE)
    changing = {"is_leading": False, "uptime": "1s", "is_stopped": False}
    async with road.engine.connect() as connection:
        for number in range(20):
            running = f'[{{"attempt": {number}}}]'
            await connection.exec_driver_sql(statement, registration._constant | changing | {"running": running})
        counted = await connection.exec_driver_sql(
            "select pg_stat_get_xact_tuples_updated(oid), pg_stat_get_xact_tuples_hot_updated(oid)"
            " from pg_class where oid = 'postroad.process'::regclass"
        )
        assert counted.one() == (19, 19)


async def test_a_process_that_may_not_write_its_row_says_so_once_and_works_on(
    road: Road, caplog: pytest.LogCaptureFixture
) -> None:
    await road.ask("alter table postroad.process rename to elsewhere")

    with caplog.at_level(logging.WARNING, "postroad.outbox.process"):
        async with Registration(road.engine, "postroad", Role.RELAY) as registration:
            registration.set_leading(True)
            await asyncio.sleep(0)

    (record,) = caplog.records
    assert "this process is not in the registry" in record.getMessage()
    assert 'relation "postroad.process" does not exist' in record.getMessage()
