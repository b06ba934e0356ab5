"""What authors test their pipelines with: a handler over the test's connection, a road, its crashes and its checks."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from postroad import Pipeline, Reject, Retry, Settings, Task
from postroad.core.database import make_engine
from postroad.core.errors import NotFoundError, RefusedError
from postroad.core.servers import Servers
from postroad.testing import Completed, Road, StageRun, ViolationError, places, run_stage
from postroad.testing.pipelines import open_road
from postroad.testing.traffic import until

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def engine(settings: Settings) -> AsyncIterator[AsyncEngine]:
    made = make_engine(settings, application="test")
    async with made.begin() as connection:
        await connection.execute(text("create table mark (n int not null)"))
    yield made
    await made.dispose()


class Trip:
    """``pack``, then ``ride``: what they did outside, in order, and whether ``ride`` waits."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.pipeline = Pipeline("trip")

        @self.pipeline.stage()
        async def pack(task: Task, connection: AsyncConnection) -> int:
            await connection.execute(text("create table if not exists packed (n int)"))
            await connection.execute(text("insert into packed values (1)"))
            self.done.append(f"pack {task.payload} attempt {task.attempt}")
            return task.attempt

        @self.pipeline.stage(after="pack")
        async def ride(task: Task) -> None:
            self.done.append(f"ride {task.payload} attempt {task.attempt}")
            if task.payload == "into a ditch":
                raise Reject("no road")
            await self.gate.wait()


@pytest.fixture
def trip() -> Trip:
    return Trip()


# A handler over the test's connection


async def marks(connection: AsyncConnection) -> list[int]:
    return list(await connection.scalars(text("select n from mark order by n")))


async def test_what_a_completed_handler_wrote_is_there_and_not_committed(engine: AsyncEngine) -> None:
    sea = Pipeline("sea")

    @sea.stage()
    async def sail(task: Task, connection: AsyncConnection) -> int:
        await connection.execute(text("insert into mark values (2)"))
        return 2

    @sea.stage()
    async def row(task: Task, session: AsyncSession) -> int:
        await session.execute(text("insert into mark values (3)"))
        return 3

    async with engine.connect() as connection:
        await connection.execute(text("insert into mark values (1)"))

        assert await run_stage(sea, "sail", connection=connection) == Completed(2)
        assert await run_stage(sea, "row", connection=connection) == Completed(3)
        assert await marks(connection) == [1, 2, 3]
        await connection.rollback()
        assert await marks(connection) == []


async def test_what_a_failed_handler_wrote_is_undone_and_the_tests_own_writes_are_not(engine: AsyncEngine) -> None:
    sea = Pipeline("sea")

    @sea.stage(timeout=0.2)
    async def sail(task: Task, connection: AsyncConnection) -> None:
        await connection.execute(text("insert into mark values (2)"))
        match task.payload:
            case "storm":
                raise Reject("storm")
            case "swallowed":
                try:
                    await connection.execute(text("select 1/0"))
                except Exception:
                    return

    async with engine.connect() as connection:
        await connection.execute(text("insert into mark values (1)"))
        for payload, outcome, reason in (
            ("storm", Reject, "storm"),
            ("swallowed", Retry, "the transaction failed: (psycopg.errors.InFailedSqlTransaction)"),
        ):
            came_to = await run_stage(sea, "sail", payload, connection=connection)

            assert isinstance(came_to, outcome)
            assert reason in came_to.reason
            assert await marks(connection) == [1]


async def test_a_query_that_the_timeout_cuts_off_is_a_retry(engine: AsyncEngine) -> None:
    sea = Pipeline("sea")

    @sea.stage(timeout=0.1)
    async def sail(task: Task, connection: AsyncConnection) -> None:
        await connection.execute(text("select pg_sleep(10)"))

    async with engine.connect() as connection:
        outcome = await run_stage(sea, "sail", connection=connection)

    assert isinstance(outcome, Retry)
    assert outcome.reason == "timed out after 0.1 s"


async def test_a_handler_that_commits_is_rejected_as_by_a_worker(engine: AsyncEngine) -> None:
    sea = Pipeline("sea")

    @sea.stage()
    async def sail(task: Task, connection: AsyncConnection) -> None:
        await connection.commit()

    async with engine.connect() as connection:
        outcome = await run_stage(sea, "sail", connection=connection)

    assert isinstance(outcome, Reject)
    assert outcome.reason.startswith("the handler committed its transaction")


# A road


async def test_a_task_travels_and_its_state_is_told(settings: Settings, trip: Trip) -> None:
    async with open_road(settings, trip.pipeline) as road:
        task_id = await road.submit(trip.pipeline, "York", key="k", labels={"a": "b"})
        state = await road.wait(task_id)

        assert (state.status, state.stage_status, state.results) == (
            "completed",
            "ride_done",
            {"pack": 1, "ride": None},
        )
        assert await road.submit("trip", "York", key="k", labels={"a": "b"}) == task_id
        with pytest.raises(RefusedError, match=f"the key 'k' stands for task {task_id}"):
            await road.submit("trip", "Rome", key="k")
        await road.drain()

    assert trip.done == ["pack York attempt 1", "ride York attempt 1"]


async def test_a_task_that_died_tells_why(settings: Settings, trip: Trip) -> None:
    async with open_road(settings, trip.pipeline) as road:
        state = await road.wait(await road.submit(trip.pipeline, "into a ditch"))

        assert state.runs["ride"] == StageRun("dead", 1, None, "no road")
        assert str(state).endswith("failed_at_stage:ride: pack done (attempts: 1), ride dead (attempts: 1; no road)")
        await road.drain()


async def test_waiting_in_vain_says_where_the_task_is(settings: Settings, trip: Trip) -> None:
    trip.gate.clear()
    async with open_road(settings, trip.pipeline) as road:
        task_id = await road.submit(trip.pipeline, "York")
        await until(lambda: _is(len(trip.done) == 2))

        told = f"task {task_id} of trip is in_progress, pack_done: pack done"
        with pytest.raises(TimeoutError, match=f"after 0.05 s {told}"):
            await road.wait(task_id, timeout=0.05)
        with pytest.raises(TimeoutError, match=f"not done after 0.05 s:\n{told}"):
            await road.drain(timeout=0.05)
        trip.gate.set()


async def test_what_a_road_does_not_know_is_named(settings: Settings, trip: Trip) -> None:
    async with open_road(settings) as road:
        with pytest.raises(NotFoundError, match="pipeline 'trip' is not at work on this road"):
            await road.submit(trip.pipeline)
        await road.deploy(trip.pipeline)
        with pytest.raises(RefusedError, match="pipeline 'trip' is at work on this road already"):
            await road.deploy(trip.pipeline)
        with pytest.raises(NotFoundError, match="there is no stage 'rid'"):
            road.crash_before_committing("rid")
        with pytest.raises(RuntimeError, match="asyncio_default_fixture_loop_scope"):
            await asyncio.to_thread(lambda: asyncio.run(road.submit(trip.pipeline)))


async def test_a_worker_that_ends_by_itself_is_heard_of(settings: Settings, trip: Trip) -> None:
    with pytest.raises(ExceptionGroup, match="unhandled errors") as error:  # noqa: PT012 - the same
        async with open_road(settings, trip.pipeline) as road:
            (worker, _) = road._traffic.workers
            worker._consumers[0]._holding.wait_for_room = _broken  # type: ignore[method-assign]
            await road.submit(trip.pipeline, "York")
            await road.drain()

    assert "broken" in str(error.value.exceptions)


# Crashes


@pytest.mark.parametrize("stage", ["pack", "ride"])
async def test_after_a_crash_before_the_commit_the_handler_runs_again(
    settings: Settings, trip: Trip, stage: str
) -> None:
    async with open_road(settings, trip.pipeline) as road:
        crash = road.crash_before_committing(stage)
        with pytest.raises(RefusedError, match="to crash already"):
            road.crash_before_acknowledging(stage)

        task_id = await road.submit(trip.pipeline, "York")
        await road.drain()

        assert (crash.happened, crash.task_id) == (True, task_id)
        assert trip.done.count(f"{stage} York attempt 1") == 2
        assert len(trip.done) == 3
        assert await _packed(road) == 1


@pytest.mark.parametrize("stage", ["pack", "ride"])
async def test_after_a_crash_before_the_acknowledgement_the_handler_does_not_run(
    settings: Settings, trip: Trip, stage: str
) -> None:
    async with open_road(settings, trip.pipeline) as road:
        crash = road.crash_before_acknowledging(stage)
        doomed = road._workers[f"trip.{stage}"]

        await road.submit(trip.pipeline, "York")
        await crash.wait()
        # Nobody has acknowledged it: it is there, under the name of the dead.
        assert await _pending(road, stage) == [doomed.name]
        await road.drain()

        assert trip.done == ["pack York attempt 1", "ride York attempt 1"]
        assert await _pending(road, stage) == []
        assert await _packed(road) == 1


async def test_a_crash_takes_what_ran_beside_it_and_a_second_one_follows(settings: Settings, trip: Trip) -> None:
    trip.gate.clear()
    async with open_road(settings, trip.pipeline) as road:
        crash = road.crash_before_committing("trip.ride")
        await asyncio.gather(*(road.submit(trip.pipeline, place) for place in ("York", "Rome", "Bath")))
        await until(lambda: _is(len(trip.done) == 6))
        trip.gate.set()
        await crash.wait()
        again = road.crash_before_acknowledging("ride")
        await road.drain()

        assert again.happened
        rides = [one for one in trip.done if one.startswith("ride")]
        # The second crash, too, may take what ran beside it.
        assert {rides.count(f"ride {place} attempt 1") for place in ("York", "Rome", "Bath")} <= {1, 2, 3}
        assert len(rides) > 3


# What a road checks at its end


async def test_a_violation_at_the_end_is_an_error(settings: Settings, trip: Trip) -> None:
    with pytest.raises(ViolationError, match="no event without its task: 1 violations"):  # noqa: PT012 - the same
        async with open_road(settings, trip.pipeline) as road:
            task_id = await road.submit(trip.pipeline, "York")
            await road.wait(task_id)
            await road.audit()
            async with road.engine.begin() as connection:
                await connection.execute(
                    text(
                        "insert into postroad.outbox (task_id, pipeline, type)"
                        " values (gen_random_uuid(), 'trip', 'TaskCreated')"
                    )
                )


async def test_a_crash_that_has_not_happened_is_an_error(settings: Settings, trip: Trip) -> None:
    with pytest.raises(AssertionError, match=r"trip.ride did not crash before the commit: no attempt of it succeeded"):  # noqa: PT012 - the same
        async with open_road(settings, trip.pipeline) as road:
            crash = road.crash_before_committing("ride")
            await road.wait(await road.submit(trip.pipeline, "into a ditch"))
            with pytest.raises(TimeoutError, match=r"no attempt of it succeeded within 0.01 s"):
                await crash.wait(timeout=0.01)


async def test_an_error_of_the_test_is_not_hidden_by_what_the_road_finds(settings: Settings, trip: Trip) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the road's end is what is tried
        async with open_road(settings, trip.pipeline) as road:
            road.crash_before_committing("ride")
            raise ZeroDivisionError


# Places, pytest and the page


def test_a_migration_that_stays_connected_is_told_so(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "CLOSING", 0.1)
    left: list[psycopg.Connection[tuple[object, ...]]] = []

    with (
        pytest.raises(RefusedError, match=r"let it close them \(connection.close\(\), engine.dispose\(\)\)"),
        places.template(servers, migration=lambda url: left.append(psycopg.connect(url))),
    ):
        pass

    with contextlib.closing(left.pop()) as connection, pytest.raises(psycopg.OperationalError):
        connection.execute("select")  # the database is gone


def test_the_page_on_testing_runs(servers: Servers, tmp_path: Path) -> None:
    page = (ROOT / "docs/testing.md").read_text("utf-8")
    files = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL))
    for name, body in files.items():
        (tmp_path / name).write_text(body)

    command = [sys.executable, "try_out.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=_environment(servers)
    ) as trying:
        tested = _pytest(tmp_path, servers, mode="auto")
        tried, _ = trying.communicate(timeout=60)

    assert "9 passed" in tested, tested
    assert "failed_at_stage:validate: validate dead (attempts: 1; an order is for one or more)" in tried, tried


def test_in_strict_mode_on_embedded_servers_a_violation_fails_the_test(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["postroad.testing.plugin"]\n')
    (tmp_path / "test_road.py").write_text("""
import pytest
from sqlalchemy import text
from postroad import Pipeline

sea = Pipeline("sea")

@sea.stage()
def sail(task): ...

@pytest.mark.asyncio
@pytest.mark.parametrize("statement", ["select 1", "update postroad.task set version = 7"])
async def test_sail(road, statement):
    await road.deploy(sea)
    await road.wait(await road.submit(sea))
    async with road.engine.begin() as connection:
        await connection.execute(text(statement))
""")

    told = _pytest(tmp_path, None, mode="strict")

    assert "2 passed, 1 error" in told, told
    assert "ViolationError: the audit at the end of the road: a task's version counts its writes: 1 violations" in told


def _pytest(folder: Path, servers: Servers | None, *, mode: str) -> str:
    """What pytest says of the tests in ``folder``."""
    options = ["-p", "no:cacheprovider", "-W", "error", "-o", f"asyncio_mode={mode}"]
    options += ["-o", "asyncio_default_fixture_loop_scope=function"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "."],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=_environment(servers),
    )  # fmt: skip
    return result.stdout


def _environment(servers: Servers | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    given = {} if servers is None else {"DATABASE_URL": servers.database_url, "REDIS_URL": servers.redis_url}
    return kept | given | {"PYTHONPATH": str(ROOT)}


async def _is(truth: bool) -> bool:
    return truth


async def _broken(stopping: asyncio.Event) -> int:
    raise ZeroDivisionError("broken")


async def _packed(road: Road) -> int:
    async with road.engine.connect() as connection:
        return int(await connection.scalar(text("select count(*) from packed")) or 0)


async def _pending(road: Road, stage: str) -> list[str]:
    """Who holds the entries of a stage."""
    client, stream = road._clients.of(0), road._keys.stream("trip", stage)
    return [str(one["consumer"]) for one in await client.xpending_range(stream, f"trip.{stage}", "-", "+", 10)]
