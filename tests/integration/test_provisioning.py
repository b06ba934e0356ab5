"""The example's stages on a real Postgres: what each writes, and that its invariants hold and would be missed."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from examples.provisioning import invariants, provisioning
from examples.provisioning.migrate import migrate
from examples.provisioning.pipeline import allocate, launch, notify, validate
from postroad import Reject, Snooze, Task
from postroad.core.database import sqlalchemy_url

TASK_ID = UUID("01990000-0000-7000-8000-000000000001")


@pytest.fixture
async def engine(database: str) -> AsyncIterator[AsyncEngine]:
    migrate(database)
    engine = create_async_engine(sqlalchemy_url(database), pool_size=50)
    yield engine
    await engine.dispose()


def make_task(stage: str, payload: Any, results: Mapping[str, Any] | None = None, task_id: UUID = TASK_ID) -> Task:
    return Task(
        task_id=task_id,
        pipeline="provisioning",
        stage=stage,
        payload=payload,
        results=results or {},
        attempt=1,
        labels={},
        created_at=datetime.now(UTC),
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )


async def rows(engine: AsyncEngine, statement: str) -> list[tuple[Any, ...]]:
    async with engine.connect() as connection:
        return [tuple(row) for row in await connection.execute(text(statement))]


async def violated(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as connection:
        checked = await connection.run_sync(invariants.check)
    return [name for name, violations in checked if violations]


async def run_allocate(engine: AsyncEngine, processors: int, task_id: UUID = TASK_ID) -> Any:
    async with engine.begin() as connection:
        return await allocate(make_task("allocate", {"processors": processors}, task_id=task_id), connection)


async def run_launch(engine: AsyncEngine, allocated: Any, task_id: UUID = TASK_ID) -> Any:
    results = {"allocate": allocated, "notify": {"to": "user1", "text": "Dear user1"}}
    async with engine.begin() as connection:
        return await launch(make_task("launch", {}, results, task_id), connection)


def test_notify_runs_beside_allocate_and_launch_waits_for_both() -> None:
    graph = provisioning.graph()

    assert {name: stage.after for name, stage in graph.items()} == {
        "validate": (),
        "allocate": ("validate",),
        "notify": ("validate",),
        "launch": ("allocate", "notify"),
    }
    assert {name for name, stage in graph.items() if stage.transaction is AsyncConnection} == {
        "validate",
        "allocate",
        "launch",
    }
    assert not graph["notify"].is_async


async def test_validate_returns_the_quota(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        result = await validate(make_task("validate", {"user": "user7", "processors": 128}), connection)

    assert result == {"quota": 128}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"user": "user701", "processors": 1}, "there is no account 'user701'"),
        ({"user": None, "processors": 1}, "user is missing"),
        ({"processors": 1}, "user is missing"),
        ({"user": 7, "processors": 1}, "user must be a string, not 7"),
        ({"user": "user7"}, "processors is missing"),
        ({"user": "user7", "processors": None}, "processors is missing"),
        ({"user": "user7", "processors": 0}, "processors must be 1 or more, not 0"),
        ({"user": "user7", "processors": -4}, "processors must be 1 or more, not -4"),
        ({"user": "user7", "processors": "32"}, "processors must be a whole number, not '32'"),
        ({"user": "user7", "processors": True}, "processors must be a whole number, not True"),
        ({"user": "user7", "processors": 129}, "user7 may have 128 processors at most, not 129"),
        ({"user": "user8", "processors": 64}, "user8 may have 32 processors at most, not 64"),
        ({"user": "user7", "processors": 2**1023}, f"user7 may have 128 processors at most, not {2**1023}"),
        ([], "the payload must be an object with 'user' and 'processors'"),
        ("user7", "the payload must be an object with 'user' and 'processors'"),
    ],
)
async def test_validate_rejects_what_no_retry_would_change(engine: AsyncEngine, payload: Any, reason: str) -> None:
    async with engine.begin() as connection:
        with pytest.raises(Reject) as rejection:
            await validate(make_task("validate", payload), connection)

    assert rejection.value.reason == reason


async def test_allocate_takes_the_processors_and_tells_of_it(engine: AsyncEngine) -> None:
    allocated = await run_allocate(engine, 32)

    assert allocated == {"machine": "machine1", "processors": 32}
    machines = await rows(engine, "select name, free from provisioning.machine where free < processors")
    assert machines == [("machine1", 96)]
    allocations = await rows(engine, "select task_id, machine, processors from provisioning.allocation")
    assert allocations == [(TASK_ID, "machine1", 32)]
    events = await rows(engine, "select type, task_id, pipeline, stage, data, traceparent from postroad.outbox")
    assert events == [
        (
            "ProcessorsAllocated",
            TASK_ID,
            "provisioning",
            "allocate",
            allocated,
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
    ]


async def test_allocate_leaves_nothing_if_its_transaction_does_not_commit(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        await allocate(make_task("allocate", {"processors": 32}), connection)
        await connection.rollback()

    assert await rows(engine, "select name from provisioning.machine where free < processors") == []
    assert await rows(engine, "select task_id from provisioning.allocation") == []
    assert await rows(engine, "select type from postroad.outbox") == []


async def test_allocate_chooses_the_machine_that_fits_best(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("update provisioning.machine set free = 16 where name = 'machine3'"))
        await connection.execute(text("update provisioning.machine set free = 40 where name = 'machine6'"))

    assert (await run_allocate(engine, 32))["machine"] == "machine6"


async def test_allocate_passes_over_a_machine_that_another_task_is_taking_from(engine: AsyncEngine) -> None:
    async with engine.begin() as other:
        await allocate(make_task("allocate", {"processors": 32}), other)

        assert (await run_allocate(engine, 32, uuid4()))["machine"] == "machine2"


async def test_allocate_snoozes_while_no_machine_has_enough(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("update provisioning.machine set free = 31"))

    with pytest.raises(Snooze) as snooze:
        await run_allocate(engine, 32)

    assert 0.25 <= snooze.value.after.total_seconds() <= 1
    assert snooze.value.reason == "no machine has 32 processors to spare right now"
    assert await rows(engine, "select task_id from provisioning.allocation") == []


async def test_allocate_rejects_what_no_machine_could_ever_hold(engine: AsyncEngine) -> None:
    with pytest.raises(Reject, match="no machine has 129 processors, the largest has 128"):
        await run_allocate(engine, 129)


def test_notify_composes_the_message() -> None:
    several = notify(make_task("notify", {"user": "user7", "processors": 32}))
    one = notify(make_task("notify", {"user": "user7", "processors": 1}))

    assert several == {"to": "user7", "text": "Dear user7, your job will run on 32 processors."}
    assert one["text"] == "Dear user7, your job will run on 1 processor."


async def test_launch_records_what_the_stages_before_returned_and_gives_the_processors_back(
    engine: AsyncEngine,
) -> None:
    allocated = await run_allocate(engine, 32)

    launched = await run_launch(engine, allocated)

    records = await rows(engine, "select launch_id, task_id, machine, processors, message from provisioning.launch")
    assert records == [(launched["launch_id"], TASK_ID, "machine1", 32, "Dear user1")]
    assert await rows(engine, "select name from provisioning.machine where free < processors") == []
    assert await violated(engine) == []


async def test_fifty_parallel_allocations_take_all_there_is_and_no_more(engine: AsyncEngine) -> None:
    async def attempt(task_id: UUID) -> bool:
        while True:
            try:
                await run_allocate(engine, 32, task_id)
                return True
            except Snooze:
                # The machines may only have been locked: try again while any has room.
                if not await rows(engine, "select name from provisioning.machine where free >= 32"):
                    return False

    outcomes = await asyncio.gather(*(attempt(uuid4()) for _ in range(50)))

    # Eight machines of 128 hold 32 jobs of 32.
    assert sum(outcomes) == 32
    assert await rows(engine, "select count(*), sum(processors) from provisioning.allocation") == [(32, 1024)]
    assert await rows(engine, "select name from provisioning.machine where free > 0") == []
    assert await violated(engine) == []


async def test_parallel_tasks_of_all_sizes_get_through_without_overselling(engine: AsyncEngine) -> None:
    draw = random.Random(1993)

    async def travel(processors: int) -> None:
        task_id = uuid4()
        while True:
            try:
                allocated = await run_allocate(engine, processors, task_id)
                break
            except Snooze as snooze:
                await asyncio.sleep(snooze.after.total_seconds() / 50)
        await run_launch(engine, allocated, task_id)

    async with asyncio.timeout(60):
        await asyncio.gather(*(travel(draw.choice([1, 2, 8, 32, 64, 128])) for _ in range(150)))

    assert await rows(engine, "select count(*) from provisioning.launch") == [(150,)]
    assert await rows(engine, "select name from provisioning.machine where free < processors") == []
    assert await violated(engine) == []


def test_migrating_again_or_twice_at_once_changes_nothing(database: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(migrate, [database, database]))
    migrate(database.replace("postgresql://", "postgres://"))

    with psycopg.connect(database) as connection:
        accounts = connection.execute("select count(*) from provisioning.account").fetchone()
        machines = connection.execute("select count(*), sum(free) from provisioning.machine").fetchone()
    assert accounts == (700,)
    assert machines == (8, 1024)


ALLOCATED = "insert into provisioning.allocation (task_id, machine, processors) values ('{id}', 'machine1', 32);"
LAUNCHED = "insert into provisioning.launch (task_id, machine, processors, message) values ('{id}', '{on}', 32, '');"
TAKEN = "update provisioning.machine set free = free - {n} where name = 'machine1';"
COMPLETED = """
    insert into postroad.pipeline (pipeline, definition, version) values ('provisioning', '{{}}', 1);
    insert into postroad.task (task_id, pipeline, payload, status, finished_at, trace_id, traceparent)
    values ('{id}', 'provisioning', '{{}}', 'completed', now(), '', '');
"""
DONE = """
    insert into postroad.stage_run (task_id, stage, status, attempts, finished_at)
    values ('{id}', '{stage}', 'done', 1, now());
"""


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (TAKEN.format(n=1), ["what is free and what is allocated are the whole machine"]),
        (
            TAKEN.format(n=64) + 2 * ALLOCATED.format(id=TASK_ID),
            ["no task was allocated twice"],
        ),
        (
            ALLOCATED.format(id=TASK_ID) + 2 * LAUNCHED.format(id=TASK_ID, on="machine1"),
            [
                "what is free and what is allocated are the whole machine",
                "at no moment was a machine oversold",
                "no task was launched twice",
            ],
        ),
        (
            "".join(ALLOCATED.format(id=UUID(int=number)) for number in range(5))
            + "".join(LAUNCHED.format(id=UUID(int=number), on="machine1") for number in range(5)),
            ["at no moment was a machine oversold"],
        ),
        (
            TAKEN.format(n=32) + ALLOCATED.format(id=TASK_ID) + LAUNCHED.format(id=TASK_ID, on="machine2"),
            [
                "what is free and what is allocated are the whole machine",
                "at no moment was a machine oversold",
                "every launch has its allocation",
            ],
        ),
        (
            COMPLETED.format(id=TASK_ID)
            + DONE.format(id=TASK_ID, stage="allocate")
            + TAKEN.format(n=32)
            + ALLOCATED.format(id=TASK_ID),
            ["no completed task holds processors"],
        ),
        (
            COMPLETED.format(id=TASK_ID) + DONE.format(id=TASK_ID, stage="launch"),
            ["no stage is done without its effect"],
        ),
        (
            COMPLETED.format(id=TASK_ID) + ALLOCATED.format(id=TASK_ID) + LAUNCHED.format(id=TASK_ID, on="machine1"),
            ["no effect is there whose stage is not done"],
        ),
    ],
)
async def test_each_invariant_sees_what_violates_it(engine: AsyncEngine, damage: str, expected: list[str]) -> None:
    async with engine.begin() as connection:
        for statement in filter(str.strip, damage.split(";")):
            await connection.exec_driver_sql(statement)

    assert await violated(engine) == expected


async def test_the_invariants_command_prints_each_and_exits_with_5_if_one_is_violated(
    engine: AsyncEngine,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DATABASE_URL", database)

    assert await asyncio.to_thread(invariants.main) == 0
    async with engine.begin() as connection:
        await connection.execute(text("update provisioning.machine set free = 0 where name = 'machine1'"))
    capsys.readouterr()
    assert await asyncio.to_thread(invariants.main) == 5

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(invariants.INVARIANTS)
    assert lines[0].split(maxsplit=1) == ["1", "what is free and what is allocated are the whole machine"]


def test_the_invariants_command_says_which_tables_are_missing(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", database)

    assert invariants.main() == 1

    assert "examples.provisioning.migrate" in capsys.readouterr().err


def test_invariants_are_checked_on_connections_of_psycopg_too(database: str) -> None:
    migrate(database)
    engine = create_engine(sqlalchemy_url(database))

    with psycopg.connect(database) as plain, engine.connect() as connection:
        assert invariants.check(plain) == invariants.check(connection)

    engine.dispose()
