"""Tasks that start not before a time, and of which no stage is started after one: at the door and on the way."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from postroad import Pipeline, Reject, Retry, Settings, Snooze, Task, submit
from postroad.core import broker
from postroad.core.broker import group_name
from postroad.core.database import connect_psycopg
from postroad.intake.retry import retry_dead, retry_from
from postroad.relay.sweep import Sweep
from postroad.testing.traffic import until
from tests.integration.door import Door, pointers, problem
from tests.integration.line import Line, open_line
from tests.integration.road import Road


def ahead(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def submitted(
    line: Line, payload: Any = None, *, not_before: datetime | None = None, deadline: datetime | None = None
) -> UUID:
    async with line.road.engine.begin() as connection:
        accepted = await submit(connection, line.pipeline.name, payload, not_before=not_before, deadline=deadline)
    return accepted.task_id


async def sweep(settings: Settings) -> int:
    """One round; how many stages were asked for. For what has been ready for 200 ms."""
    clients = broker.Clients(settings)
    async with await connect_psycopg(settings, application="sweep") as connection:
        asked = await Sweep(settings, clients, margin=timedelta(milliseconds=200)).round(connection)
    await clients.aclose()
    return asked


# At the door


async def test_dates_are_taken_over_http_and_shown(door: Door) -> None:
    soon = ahead(60)
    one = await door.submit(not_before="2026-06-01T10:00:00+01:00", deadline="9999-12-31T23:59:59Z")
    lines = await door.batch([{"pipeline": "travel", "payload": 1, "not_before": soon.isoformat()}])

    first = (await door.client.get(one.headers["location"])).json()
    second = (await door.client.get(f"/v1/tasks/{lines[0]['task_id']}")).json()
    assert datetime.fromisoformat(first["not_before"]) == datetime(2026, 6, 1, 9, tzinfo=UTC)
    assert datetime.fromisoformat(first["deadline"]) == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert datetime.fromisoformat(second["not_before"]) == soon
    assert second["deadline"] is None


async def test_dates_that_will_not_do_are_refused_at_the_door(door: Door) -> None:
    for member, value in (
        ("not_before", "tomorrow"),
        ("not_before", "2026-12-01T10:00:00"),
        ("not_before", 1764583200),
        ("not_before", ahead(367 * 24 * 3600).isoformat()),
        ("deadline", []),
        ("deadline", "2020-01-01T00:00:00Z"),
    ):
        refused = problem(await door.submit("k", **{member: value}), 422, "invalid")
        assert pointers(refused) == [f"#/{member}"]
    ends_first = await door.submit(not_before=ahead(100).isoformat(), deadline=ahead(50).isoformat())
    (late,) = await door.batch([{"pipeline": "travel", "payload": 1, "deadline": "2020-01-01T00:00:00Z"}])

    assert pointers(problem(ends_first, 422, "invalid")) == pointers(late) == ["#/deadline"]
    assert late["status"] == 422
    assert await door.road.count("task") == {"task": 0}


async def test_the_same_request_is_a_replay_after_its_deadline_too(door: Door) -> None:
    deadline = ahead(0.5).isoformat()
    first = await door.submit("k", deadline=deadline)
    await door.road.ask("select pg_sleep(0.6)")

    again = await door.submit("k", deadline=deadline)
    other = await door.submit("k", deadline=ahead(60).isoformat())

    assert again.json()["task_id"] == first.json()["task_id"]
    problem(other, 422, "key-reused")


async def test_a_moment_is_not_the_same_content_as_another_member(door: Door) -> None:
    moment = ahead(600).isoformat()
    await door.submit("before", not_before=moment)
    await door.submit("until", deadline=moment)

    problem(await door.submit("before", deadline=moment), 422, "key-reused")
    problem(await door.submit("until", not_before=moment), 422, "key-reused")


# Not before


async def test_a_task_starts_when_its_time_has_come_and_not_before(settings: Settings) -> None:
    road = Pipeline("road")
    begun: dict[str, datetime] = {}

    @road.stage()
    async def ride(task: Task) -> None:
        begun[task.payload] = datetime.now(UTC)

    async with open_line(settings, road) as line:
        line.work()
        time = ahead(1.5)
        later = await submitted(line, "later", not_before=time)
        await submitted(line, "now", not_before=ahead(-100))
        await until(lambda: line.are_parked("ride"))
        assert "later" not in begun
        assert await line.road.task(later, "status", "stage_status") == ("pending", "received")

        assert await line.are_finished() == {"completed": 2}
        assert begun["now"] < time <= begun["later"]
        run = await line.run_of(later, "ride")
        assert run is not None
        assert (run.status, run.attempts) == ("done", 1)
        assert await line.violated() == {}


async def test_the_sweep_does_not_take_a_task_whose_time_has_not_come_for_lost(settings: Settings) -> None:
    road = Pipeline("road")

    @road.stage()
    async def ride(task: Task) -> None: ...

    async with open_line(settings, road) as line:
        await until(lambda: line.has_stream("ride"))
        waiting = await submitted(line, not_before=ahead(3600))
        lost = await submitted(line)
        await line.abandon("ride", consumer="gone", deliveries=1, count=2)
        await line.client.xgroup_delconsumer(line.stream("ride"), group_name("road", "ride"), "gone")
        await line.road.ask("select pg_sleep(0.25)")

        assert await sweep(settings) == 1
        assert "StageRequested:ride" in await line.events(lost)
        assert "StageRequested:ride" not in await line.events(waiting)


async def test_a_task_that_waits_for_longer_than_events_are_kept_is_not_forgotten(settings: Settings) -> None:
    road = Pipeline("road")

    @road.stage()
    async def ride(task: Task) -> None: ...

    async with open_line(settings, road) as line:
        await until(lambda: line.has_stream("ride"))
        task_id = await submitted(line, not_before=ahead(1))
        await line.abandon("ride", consumer="gone", deliveries=1, count=1)
        await line.client.xgroup_delconsumer(line.stream("ride"), group_name("road", "ride"), "gone")
        # As prune does, a month later.
        await line.road.ask("truncate postroad.outbox")
        await line.road.ask("select pg_sleep(1.3)")

        assert await sweep(settings) == 1
        assert await line.events(task_id) == ["StageRequested:ride"]


# Deadlines


async def test_a_stage_is_not_started_once_the_deadline_has_passed(settings: Settings) -> None:
    road = Pipeline("road")
    begun: list[str] = []

    @road.stage()
    async def pack(task: Task) -> None:
        begun.append(f"pack by {task.deadline}")

    @road.stage(after="pack")
    async def ride(task: Task) -> None:
        begun.append("ride")

    async with open_line(settings, road) as line:
        deadline = ahead(2).replace(microsecond=0)
        task_id = await submitted(line, deadline=deadline)
        line.work("pack")
        await until(lambda: _is_done(line, task_id, "pack"))
        await line.road.ask("select pg_sleep(extract(epoch from :deadline - clock_timestamp()))", deadline=deadline)
        line.work("ride")

        assert await line.are_finished() == {"failed": 1}
        said = f"its deadline {deadline.isoformat().replace('+00:00', 'Z')} has passed"
        assert await line.letter(task_id) == (said, None, 0)
        assert begun == [f"pack by {deadline}"]
        assert await line.violated() == {}


async def _is_done(line: Line, task_id: UUID, stage: str) -> bool:
    run = await line.run_of(task_id, stage)
    return run is not None and run.status == "done"


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_an_attempt_ends_at_the_deadline_and_is_the_last(in_transaction: bool, settings: Settings) -> None:
    road = Pipeline("road")

    async def ride(task: Task) -> None:
        await asyncio.sleep(60)

    async def ride_in_transaction(task: Task, connection: AsyncConnection) -> None:
        await asyncio.sleep(60)

    road.stage("ride", timeout=60)(ride_in_transaction if in_transaction else ride)
    async with open_line(settings, road) as line:
        line.work()
        await until(lambda: line.has_stream("ride"))
        task_id = await submitted(line, deadline=ahead(2))

        assert await line.are_finished(seconds=30) == {"failed": 1}
        reason, _, attempts = await line.letter(task_id)
        assert "has passed (after: timed out after " in reason
        assert attempts == 1
        assert await line.violated() == {}


async def test_a_retry_after_the_deadline_is_not_waited_for(settings: Settings) -> None:
    road = Pipeline("road")

    @road.stage()
    async def ride(task: Task) -> None:
        if task.payload == "snooze":
            raise Snooze(3600)
        raise Retry("no horse", after=3600)

    async with open_line(settings, road) as line:
        line.work()
        retried = await submitted(line, deadline=ahead(600))
        snoozed = await submitted(line, "snooze", deadline=ahead(600))

        assert await line.are_finished() == {"failed": 2}
        assert "comes before the next attempt (after: no horse)" in (await line.letter(retried))[0]
        assert (await line.letter(snoozed))[2] == 0
        assert await line.violated() == {}


async def test_a_person_who_asks_for_it_after_the_deadline_gets_it(settings: Settings) -> None:
    road = Pipeline("road")

    @road.stage()
    async def ride(task: Task) -> None: ...

    async with open_line(settings, road) as line:
        tasks = [await submitted(line, deadline=ahead(0.3)) for _ in range(2)]
        await line.road.ask("select pg_sleep(0.4)")
        line.work()
        assert await line.are_finished() == {"failed": 2}

        async with line.road.engine.begin() as connection:
            await retry_dead(connection, tasks[0], "postroad", by="ada")
            await retry_from(connection, tasks[1], "ride", "postroad", by="ada")

        assert await line.are_finished() == {"completed": 2}
        assert [await line.road.task(task, "deadline") for task in tasks] == [(None,)] * 2
        assert await line.violated() == {}


async def test_a_deadline_that_is_still_ahead_outlives_a_requeue(road: Road) -> None:
    deadline = ahead(600)
    async with road.engine.begin() as connection:
        task_id = (await submit(connection, "travel", 1, deadline=deadline)).task_id
    await road.commit(task_id, "pack", Reject("no"))
    async with road.engine.begin() as connection:
        await retry_dead(connection, task_id, "postroad", by="ada")

    assert await road.task(task_id, "status", "deadline") == ("in_progress", deadline)
