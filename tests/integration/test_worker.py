"""Workers and a relay on real servers: every task gets through, each stage succeeds once, whatever fails."""

import asyncio
import contextlib
import dataclasses
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from redis.exceptions import RedisError
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from postroad import Pipeline, Reject, Retry, Settings, Snooze, Task
from postroad.core.broker import BLOCK, RETRY_CONSUMER, group_name
from postroad.core.servers import Valkey
from postroad.stages import attempt as attempt_module
from postroad.stages import consumer as consumer_module
from postroad.stages import control as control_module
from postroad.stages import worker as worker_module
from postroad.stages.ledger import Ledger
from postroad.testing.traffic import until
from tests.integration.line import Line, numbers, open_line
from tests.integration.proxy import LossyProxy

SHORT = timedelta(seconds=1)
"""The shortest lease that settings allow."""

INSERT = text("insert into effect (task_id, attempt) values (:task_id, :attempt)")


@pytest.fixture
def own_settings(settings: Settings, own_valkey: Valkey) -> Settings:
    """Settings for a Redis of the test's own, to be disturbed."""
    return dataclasses.replace(settings, redis_url=own_valkey.url)


@contextlib.asynccontextmanager
async def line_with_effects(settings: Settings, pipeline: Pipeline) -> AsyncIterator[Line]:
    """A line whose handlers write to a table of their own."""
    async with open_line(settings, pipeline) as line:
        await line.road.ask("create table effect (task_id uuid, attempt int, unique (task_id, attempt))")
        yield line


async def effects(line: Line) -> Counter[UUID]:
    """How many effects each task has had."""
    return Counter(task_id for (task_id,) in await line.road.ask("select task_id from effect"))


def effect_of(task: Task) -> dict[str, Any]:
    return {"task_id": task.task_id, "attempt": task.attempt}


def one_stage(handler: Callable[..., Any], **options: Any) -> Pipeline:
    road = Pipeline("road")
    road.stage("ride", **options)(handler)
    return road


async def done_once(line: Line, tasks: list[UUID]) -> bool:
    """True if every stage of ``tasks`` was completed exactly once."""
    rows = await line.road.ask(
        "select task_id, stage, count(*) from postroad.outbox where type = 'StageCompleted' group by 1, 2"
    )
    stages = line.pipeline.graph()
    return Counter({(task_id, stage): count for task_id, stage, count in rows}) == Counter(
        {(task_id, stage): 1 for task_id in tasks for stage in stages}
    )


# What becomes of a task


async def test_a_pipeline_that_forks_and_joins_is_completed(settings: Settings) -> None:
    travel = Pipeline("travel")

    @travel.stage()
    async def pack(task: Task) -> Any:
        return {"n": task.payload["n"]}

    @travel.stage(after="pack")
    def ride(task: Task) -> Any:
        return task.results["pack"]["n"] * 2

    @travel.stage(after="pack")
    async def rest(task: Task, connection: AsyncConnection) -> Any:
        return (await connection.execute(text("select 40 + :n"), {"n": task.payload["n"]})).scalar_one()

    @travel.stage(after=["ride", "rest"])
    async def arrive(task: Task) -> Any:
        return [task.results["ride"], task.results["rest"]]

    async with open_line(settings, travel) as line:
        line.work("pack", "ride")
        line.work("rest", "arrive")
        tasks = await line.submit(*numbers(30))

        assert await line.are_finished() == {"completed": 30}

        assert await done_once(line, tasks)
        for number, task_id in enumerate(tasks):
            run = await line.run_of(task_id, "arrive")
            assert run is not None
            assert (run.status, run.attempts, run.result) == ("done", 1, [number * 2, number + 40])
        assert (await line.events(tasks[0], "StageRequested")).count("StageRequested:arrive") == 1
        assert await line.violated() == {}
        await until(line.is_quiet)


async def test_a_retry_waits_in_redis_and_then_succeeds(settings: Settings) -> None:
    attempts: list[int] = []

    async def ride(task: Task) -> str:
        attempts.append(task.attempt)
        if task.attempt < 3:
            raise Retry("the bridge is out", after=0.4)
        return "through"

    async with open_line(settings, one_stage(ride)) as line:
        line.work()
        (task_id,) = await line.submit({})
        await until(lambda: line.are_parked("ride"))

        failed = await line.run_of(task_id, "ride")
        assert failed is not None
        assert (failed.status, failed.error, failed.has_date) == ("failed", "the bridge is out", True)
        assert await line.road.task(task_id, "status", "stage_status") == ("in_progress", "failed_at_stage:ride")
        assert await line.are_finished() == {"completed": 1}

        assert attempts == [1, 2, 3]
        done = await line.run_of(task_id, "ride")
        assert done is not None
        assert (done.status, done.attempts, done.result, done.error, done.has_date) == (
            "done",
            3,
            "through",
            None,
            False,
        )
        assert await line.road.task(task_id, "retry_count", "version", "stage_status") == (2, 4, "ride_done")
        assert await line.events(task_id, "StageFailed", "StageCompleted") == [
            "StageFailed:ride",
            "StageFailed:ride",
            "StageCompleted:ride",
        ]


async def test_a_stage_out_of_retries_is_a_dead_letter_with_reason_and_traceback(settings: Settings) -> None:
    async def ride(task: Task) -> None:
        try:
            raise ConnectionResetError("the bridge is out")
        except OSError as error:
            raise Retry("no way through", after=0.02) from error

    async with open_line(settings, one_stage(ride, retries=2)) as line:
        line.work()
        (task_id,) = await line.submit({})

        assert await line.are_finished() == {"failed": 1}

        reason, error, attempts = await line.letter(task_id)
        assert (reason, attempts) == ("no way through", 3)
        assert error is not None
        assert error.startswith("Traceback")
        assert "ConnectionResetError: the bridge is out" in error
        assert await line.road.task(task_id, "stage_status", "retry_count") == ("failed_at_stage:ride", 2)
        assert await line.violated() == {}
        await until(line.is_quiet)


async def test_a_snooze_counts_no_attempt(settings: Settings) -> None:
    seen: list[int] = []

    async def ride(task: Task) -> None:
        seen.append(task.attempt)
        if len(seen) < 4:
            raise Snooze(0.05, "the inn is closed")

    async with open_line(settings, one_stage(ride, retries=0)) as line:
        line.work()
        (task_id,) = await line.submit({})

        assert await line.are_finished() == {"completed": 1}

        assert seen == [1, 1, 1, 1]
        run = await line.run_of(task_id, "ride")
        assert run is not None
        assert run.attempts == 1
        assert await line.road.task(task_id, "retry_count", "version") == (0, 5)


async def test_a_rejected_task_fails_at_once_and_holds_up_no_other(settings: Settings) -> None:
    async def ride(task: Task) -> None:
        if task.payload["n"] == 3:
            raise Reject("no such town")

    async with open_line(settings, one_stage(ride)) as line:
        line.work()
        tasks = await line.submit(*numbers(6))

        assert await line.are_finished() == {"completed": 5, "failed": 1}

        assert await line.letter(tasks[3]) == ("no such town", None, 1)


async def test_an_attempt_that_takes_too_long_fails_and_its_thread_is_counted(settings: Settings) -> None:
    gate = threading.Event()

    def ride(task: Task) -> None:
        if task.payload == "slow":
            gate.wait()

    async with open_line(settings, one_stage(ride, retries=0, timeout=0.2, concurrency=1)) as line:
        worker = line.work()
        slow, _ = [await line.submit("slow"), await line.submit("fast")]

        assert await line.are_finished() == {"completed": 1, "failed": 1}

        assert (await line.letter(slow[0]))[0] == "timed out after 0.2 s"
        assert worker.abandoned_threads == 1
        gate.set()


async def test_a_worker_in_which_too_many_functions_hang_ends_for_a_new_one(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_module, "HUNG_LIMIT", 3)
    gate = threading.Event()

    def ride(task: Task) -> None:
        if task.payload == "slow":
            gate.wait()

    async with open_line(settings, one_stage(ride, retries=0, timeout=0.2)) as line:
        worker = line.work()
        await line.submit("slow", "slow", "slow")

        async with asyncio.timeout(30):
            await line.finish(worker)

        assert worker.is_worn_out
        assert "3 handlers have not returned" in caplog.text
        line.work()
        await line.submit("fast")
        assert await line.are_finished() == {"completed": 1, "failed": 3}
        gate.set()


async def test_delays_of_nothing_lose_nothing(settings: Settings) -> None:
    async def ride(task: Task) -> None:
        if task.attempt < 4:
            raise Retry("at once", after=0)

    async with open_line(settings, one_stage(ride)) as line:
        line.work()
        line.work()
        tasks = await line.submit(*numbers(150))

        assert await line.are_finished() == {"completed": 150}

        assert await line.road.ask("select distinct attempts from postroad.stage_run") == [(4,)]
        assert await done_once(line, tasks)
        await until(line.is_quiet)


async def test_an_entry_that_is_due_before_we_hear_that_it_was_parked_is_run(settings: Settings) -> None:
    async def ride(task: Task) -> None:
        if task.attempt == 1:
            raise Retry("at once", after=0)

    async with open_line(settings, one_stage(ride)) as line:
        worker = line.work()
        inbox = worker._consumers[0]._inbox
        park = inbox.park

        async def park_and_dawdle(entries: Any) -> int:
            parked = await park(entries)

            async def is_back() -> bool:
                return not await line.are_parked("ride")

            await until(is_back)
            return parked

        inbox.park = park_and_dawdle  # type: ignore[method-assign]
        await line.submit({})

        assert await line.are_finished() == {"completed": 1}
        await until(line.is_quiet)


async def test_an_outcome_that_postgres_refuses_is_a_dead_letter_and_spoils_no_other(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ride(task: Task) -> Any:
        return task.payload["n"]

    monkeypatch.setattr("postroad.stages.runner.encode", lambda value: "{" if value == 7 else "null")
    async with open_line(settings, one_stage(ride)) as line:
        line.work()
        tasks = await line.submit(*numbers(20))

        assert await line.are_finished() == {"completed": 19, "failed": 1}

        assert "its outcome cannot be stored" in (await line.letter(tasks[7]))[0]
        assert await line.violated() == {}


async def test_a_fault_of_the_worker_keeps_neither_entries_nor_slots(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ride(task: Task) -> None: ...

    load, faults = Ledger.load, [RuntimeError("a fault"), RuntimeError("another")]

    async def load_or_fail(self: Ledger, *arguments: Any) -> Any:
        if faults:
            raise faults.pop()
        return await load(self, *arguments)

    monkeypatch.setattr(Ledger, "load", load_or_fail)
    monkeypatch.setattr(consumer_module, "REST_AFTER_FAULT", timedelta(milliseconds=100))
    async with open_line(settings, one_stage(ride, concurrency=2)) as line:
        line.work()
        await line.submit(*numbers(10))

        assert await line.are_finished() == {"completed": 10}
        assert not faults


# Handlers that take a connection


async def test_what_a_handler_writes_commits_with_its_outcome_and_vanishes_with_its_failure(
    settings: Settings,
) -> None:
    async def ride(task: Task, connection: AsyncConnection) -> None:
        await connection.execute(INSERT, effect_of(task))
        if task.payload["n"] == 1 and task.attempt == 1:
            raise Retry("once more", after=0.02)
        if task.payload["n"] == 2:
            raise Reject("never")
        if task.payload["n"] == 3 and task.attempt == 1:
            await connection.execute(text("select 1 / 0"))

    async with line_with_effects(settings, one_stage(ride, retries=1)) as line:
        line.work()
        tasks = await line.submit(*numbers(4))

        assert await line.are_finished() == {"completed": 3, "failed": 1}

        assert await line.road.ask("select task_id, attempt from effect order by task_id") == sorted(
            [(tasks[0], 1), (tasks[1], 2), (tasks[3], 2)]
        )
        assert await line.letter(tasks[2]) == ("never", None, 1)


async def test_the_journey_has_when_each_attempt_was_ready_began_and_ended(settings: Settings) -> None:
    ran: list[tuple[datetime, datetime]] = []

    async def ride(task: Task, connection: AsyncConnection) -> None:
        began = datetime.now(UTC)
        # Its transaction is as old as the handler, and so is what that says of the time.
        await connection.execute(text("select pg_sleep(0.05)"))
        ran.append((began, datetime.now(UTC)))
        if task.attempt == 1:
            raise Retry("no road", after=0.3)

    async with line_with_effects(settings, one_stage(ride)) as line:
        line.work()
        await until(lambda: line.has_stream("ride"))  # or a rebuild would ask for the stage, once more and later
        await line.submit({})
        await line.are_finished()
        told = await line.road.ask(
            "select (data ->> 'started_at')::timestamptz, (data ->> 'waited_seconds')::float8,"
            "       (data ->> 'ran_seconds')::float8, occurred_at"
            "  from postroad.outbox where type in ('TaskCreated', 'StageFailed', 'StageCompleted') order by position"
        )

    (*_, created_at), (first, waited, lasted, failed_at), (second, waited_again, lasted_again, _) = told
    slack = timedelta(milliseconds=2)  # entries have their time in ms
    for (started_at, seconds), (began, ended) in zip([(first, lasted), (second, lasted_again)], ran, strict=True):
        assert started_at <= began
        assert started_at + timedelta(seconds=seconds) >= ended
    assert abs(first - timedelta(seconds=waited) - created_at) < slack
    assert abs(second - timedelta(seconds=waited_again) - (failed_at + timedelta(seconds=0.3))) < slack


async def test_a_handler_may_take_a_session(settings: Settings) -> None:
    async def ride(task: Task, session: AsyncSession) -> None:
        async with session.begin_nested():
            await session.execute(INSERT, effect_of(task))
        if task.attempt == 1:
            raise Retry("once more", after=0.02)

    async with line_with_effects(settings, one_stage(ride, retries=1)) as line:
        line.work()
        (task_id,) = await line.submit({})

        assert await line.are_finished() == {"completed": 1}

        assert await line.road.ask("select task_id, attempt from effect") == [(task_id, 2)]


async def test_a_session_that_commits_commits_with_the_outcome_all_the_same(settings: Settings) -> None:
    async def ride(task: Task, session: AsyncSession) -> None:
        await session.execute(INSERT, effect_of(task))
        await session.commit()
        if task.attempt == 1:
            raise Retry("once more", after=0.02)

    async with line_with_effects(settings, one_stage(ride, retries=1)) as line:
        line.work()
        (task_id,) = await line.submit({})

        assert await line.are_finished() == {"completed": 1}

        assert await line.road.ask("select task_id, attempt from effect") == [(task_id, 2)]


async def test_a_session_that_was_rolled_back_goes_on(settings: Settings) -> None:
    async def ride(task: Task, session: AsyncSession) -> None:
        await session.execute(INSERT, effect_of(task))
        try:
            await session.execute(INSERT, effect_of(task))
        except IntegrityError:
            await session.rollback()
        await session.execute(INSERT, effect_of(task) | {"attempt": 100})

    async with line_with_effects(settings, one_stage(ride, retries=0)) as line:
        line.work()
        (task_id,) = await line.submit({})

        assert await line.are_finished() == {"completed": 1}

        assert await line.road.ask("select task_id, attempt from effect") == [(task_id, 100)]


async def test_a_handler_that_begins_a_transaction_is_told_that_it_is_in_one(settings: Settings) -> None:
    async def ride(task: Task, connection: AsyncConnection) -> None:
        async with connection.begin():
            await connection.execute(INSERT, effect_of(task))

    async with line_with_effects(settings, one_stage(ride, retries=0)) as line:
        line.work()
        (task_id,) = await line.submit({})

        assert await line.are_finished() == {"failed": 1}

        assert "already initialized a SQLAlchemy Transaction" in (await line.letter(task_id))[0]
        assert await effects(line) == {}


async def commit_the_connection(task: Task, connection: AsyncConnection) -> None:
    await connection.execute(INSERT, effect_of(task))
    await connection.commit()


async def commit_and_fail(task: Task, connection: AsyncConnection) -> None:
    await connection.execute(INSERT, effect_of(task))
    await connection.commit()
    raise ValueError("after that")


@pytest.mark.parametrize("handler", [commit_the_connection, commit_and_fail])
async def test_a_handler_that_commits_is_told_not_to_and_not_run_again(
    settings: Settings, handler: Callable[..., Any]
) -> None:
    async with line_with_effects(settings, one_stage(handler)) as line:
        line.work()
        (task_id,) = await line.submit({})

        assert await line.are_finished() == {"failed": 1}

        reason, _, attempts = await line.letter(task_id)
        assert reason == "the handler committed its transaction; it must leave it open, for postroad to commit"
        assert attempts == 1
        assert await effects(line) == {task_id: 1}


async def test_a_handler_may_roll_back_what_it_wrote(settings: Settings) -> None:
    async def ride(task: Task, connection: AsyncConnection) -> str:
        await connection.execute(INSERT, effect_of(task))
        try:
            await connection.execute(INSERT, effect_of(task))
        except IntegrityError:
            await connection.rollback()
            return "taken"
        return "mine"

    async with line_with_effects(settings, one_stage(ride)) as line:
        line.work()
        (task_id,) = await line.submit({})

        assert await line.are_finished() == {"completed": 1}

        run = await line.run_of(task_id, "ride")
        assert run is not None
        assert run.result == "taken"
        assert await effects(line) == {}


async def test_a_query_that_takes_too_long_is_one_attempt(settings: Settings) -> None:
    runs: list[int] = []

    async def ride(task: Task, connection: AsyncConnection) -> None:
        runs.append(task.attempt)
        if task.payload == "own timeout":
            async with asyncio.timeout(0.1):
                await connection.execute(text("select pg_sleep(30)"))
        await connection.execute(text("select pg_sleep(30)"))

    async with open_line(settings, one_stage(ride, retries=0, timeout=0.3)) as line:
        line.work()
        (stage_timeout,) = await line.submit("the stage's timeout")
        (own_timeout,) = await line.submit("own timeout")

        assert await line.are_finished() == {"failed": 2}

        assert runs == [1, 1]
        assert (await line.letter(stage_timeout))[0] == "timed out after 0.3 s"
        assert (await line.letter(own_timeout))[0].startswith("TimeoutError")


async def test_a_handler_whose_connection_breaks_begins_anew_without_counting(settings: Settings) -> None:
    attempts: list[int] = []

    async def ride(task: Task, connection: AsyncConnection) -> None:
        attempts.append(task.attempt)
        await connection.execute(INSERT, effect_of(task))
        if len(attempts) < 3:
            await connection.execute(text("select pg_terminate_backend(pg_backend_pid())"))

    async with line_with_effects(settings, one_stage(ride, retries=0)) as line:
        line.work()
        (task_id,) = await line.submit({})

        assert await line.are_finished() == {"completed": 1}

        assert attempts == [1, 1, 1]
        assert await effects(line) == {task_id: 1}


async def test_a_handler_that_always_breaks_its_connection_fails(settings: Settings) -> None:
    runs: list[int] = []

    async def ride(task: Task, connection: AsyncConnection) -> None:
        runs.append(task.attempt)
        await connection.execute(text("select pg_terminate_backend(pg_backend_pid())"))

    async with open_line(settings, one_stage(ride, retries=0)) as line:
        line.work()
        await line.submit({})

        assert await line.are_finished() == {"failed": 1}

        assert runs == [1] * attempt_module.LOST_CONNECTIONS


async def test_a_connection_that_breaks_after_the_handler_costs_its_outcome_nothing(settings: Settings) -> None:
    runs: list[int] = []
    lines: list[Line] = []

    async def ride(task: Task, connection: AsyncConnection) -> None:
        runs.append(task.attempt)
        pid = (await connection.execute(text("select pg_backend_pid()"))).scalar_one()
        # Waits until it is gone.
        await lines[0].road.ask("select pg_terminate_backend(:pid, 10000)", pid=pid)
        raise Reject("never")

    async with open_line(settings, one_stage(ride)) as line:
        lines.append(line)
        line.work()
        (task_id,) = await line.submit({})

        assert await line.are_finished() == {"failed": 1}

        assert await line.letter(task_id) == ("never", None, 1)
        assert runs == [1]


# Servers that fail


def disturbed() -> Pipeline:
    """Three stages in a row, of each kind of handler."""
    travel = Pipeline("travel")

    @travel.stage(retries=0)
    async def pack(task: Task) -> str:
        await asyncio.sleep(0.01)
        return "packed"

    @travel.stage(after="pack", retries=0)
    async def pay(task: Task, connection: AsyncConnection) -> str:
        await connection.execute(INSERT, effect_of(task))
        await connection.execute(text("select pg_sleep(0.01)"))
        return "paid"

    @travel.stage(after="pay", retries=0)
    def ride(task: Task) -> str:
        return "there"

    return travel


@contextlib.asynccontextmanager
async def repeated(disturb: Callable[[], Awaitable[object]], pause: float) -> AsyncIterator[list[int]]:
    """Do ``disturb`` again and again during the block; yields how often it was done, in a list of one."""
    times = [0]

    async def go_on() -> None:
        while True:
            await asyncio.sleep(pause)
            await disturb()
            times[0] += 1

    disturbing = asyncio.create_task(go_on())
    try:
        yield times
    finally:
        # More than once, since redis-py may lose a cancellation.
        while not disturbing.done():
            disturbing.cancel()
            await asyncio.wait([disturbing], timeout=0.1)


async def test_a_redis_that_is_wiped_again_and_again_is_restored(own_settings: Settings) -> None:
    async with line_with_effects(own_settings, disturbed()) as line:
        line.work()
        line.work("pack", "ride")
        tasks = await line.submit(*numbers(100))
        async with repeated(lambda: line.client.flushall(), 0.4) as times:
            while times[0] < 4:
                tasks += await line.submit(*numbers(20))
                await asyncio.sleep(0.1)

        assert await line.are_finished() == {"completed": len(tasks)}

        assert await done_once(line, tasks)
        assert await effects(line) == Counter(tasks)
        assert await line.violated() == {}


async def test_killed_connections_to_redis_lose_nothing(own_settings: Settings) -> None:
    async with line_with_effects(own_settings, disturbed()) as line:
        line.work()
        line.work()
        tasks: list[UUID] = []

        async def kill() -> None:
            with contextlib.suppress(RedisError):
                await line.client.client_kill_filter(_type="normal", skipme=True)

        async with repeated(kill, 0.07) as times:
            while times[0] < 25:
                tasks += await line.submit(*numbers(10))
                await asyncio.sleep(0.1)

        assert await line.are_finished() == {"completed": len(tasks)}

        assert await done_once(line, tasks)
        assert await line.road.ask("select distinct attempts from postroad.stage_run") == [(1,)]
        assert await effects(line) == Counter(tasks)
        await until(line.is_quiet)


async def test_terminated_connections_to_postgres_lose_nothing_and_count_nothing(settings: Settings) -> None:
    async with line_with_effects(settings, disturbed()) as line:
        line.work()
        line.work()
        tasks = await line.submit(*numbers(100))
        async with await psycopg.AsyncConnection.connect(settings.database_url, autocommit=True) as killer:

            async def terminate() -> None:
                await killer.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where datname = current_database() and application_name ~ '^postroad (stage|relay)'"
                )

            async with repeated(terminate, 0.6) as times:
                # Fewer than what makes an attempt suspicious, should one meet them all.
                while times[0] < attempt_module.LOST_CONNECTIONS - 1:
                    tasks += await line.submit(*numbers(10))
                    await asyncio.sleep(0.1)

        assert await line.are_finished() == {"completed": len(tasks)}

        assert await done_once(line, tasks)
        assert await effects(line) == Counter(tasks)
        assert await line.road.ask("select distinct attempts from postroad.stage_run") == [(1,)]
        assert await line.violated() == {}


async def test_a_retry_is_not_forgotten_when_redis_is_wiped_while_its_handler_runs(own_settings: Settings) -> None:
    gate = asyncio.Event()
    attempts: list[int] = []

    async def ride(task: Task) -> None:
        attempts.append(task.attempt)
        if task.attempt == 1:
            await gate.wait()
            raise Retry("once more", after=0.2)

    async with open_line(own_settings, one_stage(ride)) as line:
        worker = line.work()
        await line.submit({})

        async def is_running() -> bool:
            return len(attempts) == 1

        await until(is_running)
        (lost,) = await line.pending("ride")
        await line.client.flushall()

        async def is_asked_for_again() -> bool:
            return await line.has_stream("ride") and set(await line.pending("ride")) - {lost} != set()

        await until(is_asked_for_again)
        # The worker has had the time to look at the new entry, and holds it for the running attempt.
        consumer = worker._consumers[0]

        async def stands_for_the_task() -> bool:
            return lost not in consumer._holding.entries and len(consumer._holding.entries) == 1

        await until(stands_for_the_task)
        gate.set()

        assert await line.are_finished() == {"completed": 1}
        assert attempts == [1, 2]
        await until(line.is_quiet)


async def test_entries_of_a_reclaim_whose_reply_was_lost_are_run(own_settings: Settings) -> None:
    async def ride(task: Task) -> None:
        if task.attempt == 1:
            raise Retry("once more", after=0.3)

    async with LossyProxy(own_settings.redis_url).serving() as proxy, open_line(own_settings, one_stage(ride)) as line:
        line.work(redis_url=proxy.url)
        await line.submit(*numbers(5))
        await until(lambda: line.are_parked("ride", 5))
        proxy.lose("evalsha", times=4)

        assert await line.are_finished() == {"completed": 5}

        assert proxy.lost > 0
        await until(line.is_quiet)


async def test_entries_of_a_read_whose_reply_was_lost_are_run(own_settings: Settings) -> None:
    async def ride(task: Task) -> None: ...

    async with LossyProxy(own_settings.redis_url).serving() as proxy, open_line(own_settings, one_stage(ride)) as line:
        line.work(redis_url=proxy.url)
        await line.submit({})
        assert await line.are_finished() == {"completed": 1}
        proxy.lose("xreadgroup", times=3)

        async def three_are_lost() -> bool:
            await line.submit({})
            return proxy.lost == 3

        await until(three_are_lost)
        tasks = await line.road.count("task")

        assert await line.are_finished() == {"completed": tasks["task"]}
        assert await line.road.ask("select distinct attempts from postroad.stage_run") == [(1,)]
        await until(line.is_quiet)


# Workers that die, freeze or stop


@pytest.mark.parametrize("takes_connection", [False, True])
async def test_a_worker_that_wakes_after_another_took_over_changes_nothing(
    settings: Settings, takes_connection: bool
) -> None:
    gates = [asyncio.Event()]
    started: list[str] = []

    async def sleep_first() -> str:
        started.append("")
        if gates:
            await gates.pop().wait()
            return "late"
        return "in time"

    async def ride(task: Task) -> str:
        return await sleep_first()

    async def ride_and_write(task: Task, connection: AsyncConnection) -> str:
        answer = await sleep_first()
        await connection.execute(INSERT, effect_of(task))
        return answer

    gate = gates[0]
    settings = dataclasses.replace(settings, lease=SHORT)
    async with line_with_effects(settings, one_stage(ride_and_write if takes_connection else ride)) as line:
        frozen = line.work()
        (task_id,) = await line.submit({})

        async def has_begun() -> bool:
            return len(started) == 1

        await until(has_begun)
        await asyncio.to_thread(frozen._heartbeat.stop)
        heir = line.work()
        assert await line.are_finished() == {"completed": 1}
        before = await line.road.task(task_id, "version", "updated_at"), await line.road.events(task_id)

        gate.set()

        async def has_let_go() -> bool:
            return not frozen._consumers[0]._holding.entries

        await until(has_let_go)
        assert (await line.road.task(task_id, "version", "updated_at"), await line.road.events(task_id)) == before
        run = await line.run_of(task_id, "ride")
        assert run is not None
        assert (run.result, run.attempts, run.worker) == ("in time", 1, heir.name)
        assert sum((await effects(line)).values()) == (1 if takes_connection else 0)
        assert await line.violated() == {}


async def test_what_runs_is_let_finish_and_nothing_more_is_read(settings: Settings) -> None:
    gate = asyncio.Event()
    started: list[int] = []

    async def ride(task: Task) -> None:
        started.append(task.payload["n"])
        await gate.wait()

    async with open_line(settings, one_stage(ride)) as line:
        worker = line.work()
        (first,) = await line.submit({"n": 0})

        async def has_begun() -> bool:
            return started == [0]

        await until(has_begun)
        worker.stop()
        await asyncio.wait_for(worker._consumers[0]._stopping.wait(), 5)
        await line.submit({"n": 1})

        async def is_published() -> bool:
            return await line.client.xlen(line.stream("ride")) == 2

        await until(is_published)
        gate.set()
        await line.finish(worker)

        assert started == [0]
        assert await line.events(first, "StageCompleted") == ["StageCompleted:ride"]
        assert await line.pending("ride") == {}
        assert await line.client.xinfo_consumers(line.stream("ride"), "road.ride") == []


async def test_what_outlasts_the_grace_is_handed_back_and_run_by_another_at_once_without_counting(
    settings: Settings,
) -> None:
    attempts: list[int] = []
    is_slow = True

    async def ride(task: Task) -> None:
        attempts.append(task.attempt)
        if is_slow:
            await asyncio.Event().wait()

    settings = dataclasses.replace(settings, grace=timedelta(milliseconds=100), lease=timedelta(minutes=5))
    async with open_line(settings, one_stage(ride, retries=0)) as line:
        worker = line.work()
        tasks = await line.submit(*numbers(5))

        async def have_begun() -> bool:
            return len(attempts) == 5

        await until(have_begun)
        await line.stop(worker)
        assert await line.are_parked("ride", 5)
        is_slow = False
        line.work()

        assert await line.are_finished() == {"completed": 5}

        assert attempts == [1] * 10
        assert await done_once(line, tasks)


async def test_what_has_not_begun_is_handed_back_while_others_still_run(settings: Settings) -> None:
    gate = asyncio.Event()
    where: dict[str, list[int]] = {"running": [], "elsewhere": []}
    label = "running"

    async def ride(task: Task) -> None:
        where[label].append(task.payload["n"])
        if task.payload["n"] == 0 and task.attempt == 1:
            raise Retry("wait for a slot", after=0.5)
        if label == "running":
            await gate.wait()

    async with open_line(settings, one_stage(ride, concurrency=1)) as line:
        worker = line.work()
        await line.submit({"n": 0})
        await until(lambda: line.are_parked("ride"))
        await line.submit({"n": 1})
        consumer = worker._consumers[0]

        async def one_waits_for_the_other() -> bool:
            return len(consumer._holding.entries) == 2 and len(where["running"]) == 2

        await until(one_waits_for_the_other)
        began = where["running"][-1]
        label = "elsewhere"
        worker.stop()
        line.work()

        async def the_other_is_done() -> bool:
            return len(await line.road.ask("select from postroad.stage_run where status = 'done'")) == 1

        await until(the_other_is_done)
        assert where["elsewhere"] == [1 - began]
        assert not line.workers[worker].done()

        gate.set()
        await line.finish(worker)
        assert await line.are_finished() == {"completed": 2}


async def test_a_handler_that_ignores_its_cancellation_keeps_no_worker_from_stopping(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()
    started = asyncio.Event()

    async def ride(task: Task) -> None:
        started.set()
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()
        raise asyncio.CancelledError("at last")

    monkeypatch.setattr(consumer_module, "CLEAN_UP", 0.2)
    settings = dataclasses.replace(settings, grace=timedelta())
    async with open_line(settings, one_stage(ride)) as line:
        worker = line.work()
        await line.submit({})
        await started.wait()
        (held,) = worker._consumers[0]._holding.entries.values()

        async with asyncio.timeout(20):
            await line.stop(worker)

        assert await line.are_parked("ride")
        assert not held.work.done()
        gate.set()
        await asyncio.wait([held.work])


async def test_an_entry_that_comes_to_a_paused_stage_waits_until_it_is_resumed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_module, "INTERVAL", 0.05)
    runs: list[int] = []

    async def ride(task: Task) -> None:
        runs.append(task.attempt)

    async def miss() -> None:
        """Interrupt a read just before it begins."""

    async with open_line(settings, one_stage(ride)) as line:
        worker = line.work()
        consumer = worker._consumers[0]

        async def is_waiting() -> bool:
            return consumer._inbox._normal._reader_id is not None and await line.has_stream("ride")

        await until(is_waiting)
        consumer._inbox.interrupt = miss  # type: ignore[method-assign]
        await line.road.ask("update postroad.stage set paused = true")

        async def is_paused() -> bool:
            return consumer._holding.is_closed

        await until(is_paused)
        await line.submit({})
        await until(lambda: line.are_parked("ride"))
        assert runs == []
        await line.road.ask("update postroad.stage set paused = false")

        assert await line.are_finished() == {"completed": 1}
        assert runs == [1]


async def test_stopping_twice_is_stopping_once(settings: Settings) -> None:
    async def ride(task: Task) -> None: ...

    async with open_line(settings, one_stage(ride)) as line:
        worker = line.work()
        await line.submit({})
        await line.are_finished()

        worker.stop()
        worker.stop()
        await line.finish(worker)
        worker.stop()


async def test_a_worker_that_is_stopped_before_it_runs_ends_at_once(settings: Settings) -> None:
    async def ride(task: Task) -> None: ...

    async with open_line(settings, one_stage(ride)) as line:
        worker = line.work()
        worker.stop()

        async with asyncio.timeout(10):
            await line.finish(worker)

        # Nothing of it is left behind.
        assert await line.client.keys(line.keys.alive(0, "*")) == []


async def test_a_worker_that_waits_for_entries_stops_at_once(settings: Settings) -> None:
    async def ride(task: Task) -> None: ...

    async with open_line(settings, one_stage(ride)) as line:
        await until(lambda: line.has_stream("ride"))
        waited: list[float] = []
        for _ in range(3):
            worker = line.work()

            async def is_waiting(worker: Any = worker) -> bool:
                return worker._consumers[0]._inbox._normal._reader_id is not None

            await until(is_waiting)
            began = asyncio.get_running_loop().time()
            await line.stop(worker)
            waited.append(asyncio.get_running_loop().time() - began)
        assert min(waited) < BLOCK.total_seconds() / 2


async def test_a_worker_whose_reading_fails_ends_with_that_error_and_without_a_heartbeat(
    settings: Settings,
) -> None:
    travel = Pipeline("travel")
    waiting = asyncio.Event()

    @travel.stage()
    async def pack(task: Task) -> None: ...

    @travel.stage(after="pack")
    async def ride(task: Task) -> None: ...

    async def fail(count: int, *, wait: bool = True) -> Any:
        await waiting.wait()
        raise RuntimeError("a fault")

    async def lose_cancellation(count: int, *, wait: bool = True) -> Any:
        """As asyncio.wait_for does, before Python 3.12, within redis-py."""
        waiting.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return [], None

    async with open_line(settings, travel) as line:
        worker = line.work()
        worker._consumers[0]._inbox.read = fail  # type: ignore[method-assign]
        worker._consumers[1]._inbox.reclaim_due = lose_cancellation  # type: ignore[method-assign]

        with pytest.raises(ExceptionGroup) as caught:
            await asyncio.wait_for(line.finish(worker), 30)

        assert caught.group_contains(RuntimeError, match="a fault")
        assert await line.client.keys(line.keys.alive(0, "*")) == []


async def test_a_worker_without_redis_stops_too(own_settings: Settings, own_valkey: Valkey) -> None:
    gate = asyncio.Event()
    started = asyncio.Event()

    async def ride(task: Task) -> None:
        started.set()
        await gate.wait()

    async with open_line(own_settings, one_stage(ride)) as line:
        worker = line.work()
        (task_id,) = await line.submit({})
        await started.wait()
        await asyncio.to_thread(own_valkey.kill)
        worker.stop()
        gate.set()

        async with asyncio.timeout(30):
            await line.finish(worker)

        assert await line.events(task_id, "TaskCompleted") == ["TaskCompleted"]


# The same task twice, and tasks that kill


async def test_a_task_that_is_delivered_twice_at_once_runs_once(settings: Settings) -> None:
    gate = asyncio.Event()
    runs: list[int] = []

    async def ride(task: Task) -> None:
        runs.append(task.attempt)
        await gate.wait()

    async with open_line(settings, one_stage(ride)) as line:
        worker = line.work()
        (task_id,) = await line.submit({})

        async def has_begun() -> bool:
            return len(runs) == 1

        await until(has_begun)
        for _ in range(5):
            await line.client.xadd(
                line.stream("ride"), {"event": 1, "type": "StageRequested", "task": str(task_id), "time": 0}
            )
        consumer = worker._consumers[0]

        async def one_is_left() -> bool:
            return await line.client.xlen(line.stream("ride")) == 1 and len(consumer._holding.entries) == 1

        await until(one_is_left)
        gate.set()

        assert await line.are_finished() == {"completed": 1}
        assert runs == [1]
        await until(line.is_quiet)


async def test_a_stage_runs_no_more_attempts_at_once_than_it_says_and_due_ones_do_not_starve(
    settings: Settings,
) -> None:
    at_once: list[int] = [0]
    order: list[tuple[int, int]] = []

    async def ride(task: Task) -> None:
        at_once.append(at_once[-1] + 1)
        order.append((task.payload["n"], task.attempt))
        # Slowly while retries are awaited: a busy machine may take long to commit that they are due.
        await asyncio.sleep(0.002 if sum(attempt == 2 for _, attempt in order) == 5 else 0.02)
        at_once.append(at_once[-1] - 1)
        if task.attempt == 1 and sum(attempt == 1 for _, attempt in order) <= 5:
            raise Retry("once more", after=0.01)

    async with open_line(settings, one_stage(ride, concurrency=1)) as line:
        await line.submit(*numbers(150))
        line.work()

        assert await line.are_finished() == {"completed": 150}

        assert max(at_once) == 1
        last_retry = max(place for place, (_, attempt) in enumerate(order) if attempt == 2)
        assert last_retry < len(order) - 20, "what was due waited until nothing else was left"


async def test_a_task_that_killed_too_many_workers_is_a_dead_letter(settings: Settings) -> None:
    runs: list[int] = []

    async def ride(task: Task) -> None:
        runs.append(task.attempt)

    settings = dataclasses.replace(settings, lease=SHORT)
    async with open_line(settings, one_stage(ride)) as line:
        await until(lambda: line.has_stream("ride"))
        (task_id,) = await line.submit({})
        await line.abandon("ride", consumer="dead", deliveries=5, count=1)
        line.work()

        assert await line.are_finished() == {"failed": 1}

        assert (await line.letter(task_id))[0] == "its worker died 5 times while running it"
        assert runs == []


async def test_suspects_run_one_at_a_time_and_hold_up_no_others(settings: Settings) -> None:
    at_once: list[int] = [0]
    gate = asyncio.Event()

    async def ride(task: Task) -> None:
        if task.payload["n"] < 4:
            at_once.append(at_once[-1] + 1)
            await gate.wait()
            at_once.append(at_once[-1] - 1)

    settings = dataclasses.replace(settings, lease=SHORT)
    async with open_line(settings, one_stage(ride)) as line:
        await until(lambda: line.has_stream("ride"))
        await line.submit(*numbers(4))
        suspects = await line.abandon("ride", consumer="dead", deliveries=2, count=4)
        line.work()

        async def are_taken() -> bool:
            pending = await line.pending("ride")
            return len(at_once) == 2 and all(pending[one][0] != "dead" for one in suspects)

        await until(are_taken)
        await line.submit({"n": 10}, {"n": 11})

        async def others_are_done() -> bool:
            return await line.road.ask("select count(*) from postroad.task where status = 'completed'") == [(2,)]

        await until(others_are_done)
        # Only the one that runs has this delivery counted.
        assert sorted(count for _, count in (await line.pending("ride")).values()) == [2, 2, 2, 3]
        gate.set()
        assert await line.are_finished() == {"completed": 6}
        assert max(at_once) == 1


@pytest.mark.parametrize("crash_limit", [2, 4])
async def test_those_beside_a_task_that_kills_its_workers_come_through(settings: Settings, crash_limit: int) -> None:
    killed = asyncio.Event()
    crashes = 0

    async def ride(task: Task) -> None:
        if task.payload["n"] == 0:
            killed.set()
        if task.payload["n"] == 0 or crashes == 0:
            await asyncio.Event().wait()

    settings = dataclasses.replace(settings, lease=SHORT, crash_limit=crash_limit)
    async with open_line(settings, one_stage(ride)) as line:
        await until(lambda: line.has_stream("ride"))
        tasks = await line.submit(*numbers(6))
        await line.abandon("ride", consumer="dead", deliveries=1, count=6)
        while not await line.is_finished():
            killed.clear()
            worker = line.work()
            waiting = asyncio.create_task(killed.wait())
            finishing = asyncio.create_task(line.are_finished())
            await asyncio.wait([waiting, finishing], return_when=asyncio.FIRST_COMPLETED)
            for one in (waiting, finishing):
                one.cancel()
            if killed.is_set():
                await line.kill(worker)
                crashes += 1

        assert await line.are_finished() == {"completed": 5, "failed": 1}
        assert (await line.letter(tasks[0]))[0] == f"its worker died {crash_limit} times while running it"
        assert crashes == crash_limit - 1
        assert await line.road.ask("select distinct attempts from postroad.stage_run where status = 'done'") == [(1,)]


async def test_what_a_stopped_worker_leaves_is_not_held_against_it(settings: Settings) -> None:
    async def ride(task: Task) -> None:
        await asyncio.Event().wait()

    settings = dataclasses.replace(settings, grace=timedelta())
    async with open_line(settings, one_stage(ride)) as line:
        await until(lambda: line.has_stream("ride"))
        await line.submit({})
        for _ in range(4):
            worker = line.work()
            consumer = worker._consumers[0]

            async def is_running(consumer: Any = consumer) -> bool:
                return any(held.has_begun for held in consumer._holding.entries.values())

            await until(is_running)
            await line.stop(worker)

        assert list((await line.pending("ride")).values()) == [(RETRY_CONSUMER, 0)]


async def test_an_entry_that_a_failover_gives_back_to_us_is_parked_again_though_no_call_failed(
    settings: Settings,
) -> None:
    async def ride(task: Task) -> None:
        raise Retry("later", after=60)

    async with open_line(dataclasses.replace(settings, lease=SHORT), one_stage(ride)) as line:
        worker = line.work()
        await line.submit({})
        await until(lambda: line.are_parked("ride"))
        (entry_id,) = await line.pending("ride")

        group, due = group_name(line.pipeline.name, "ride"), line.keys.due(line.pipeline.name, "ride")
        async with line.client.pipeline() as pipeline:
            pipeline.xclaim(line.stream("ride"), group, worker.name, 0, [entry_id], justid=True)
            pipeline.zrem(due, entry_id)
            await pipeline.execute()

        await until(lambda: line.are_parked("ride"))
        assert await line.client.zscore(due, entry_id) is not None
