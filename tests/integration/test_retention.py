"""Retention: what is old and needed by nobody goes, nothing else, and nobody waits for it."""

from datetime import timedelta
from uuid import UUID

from postroad.core.database import connect_psycopg
from postroad.core.outcome import Reject
from postroad.outbox.retention import Pruned, prune
from postroad.outbox.ticks import Ticks
from tests.integration.road import Road

MONTH = timedelta(days=30)


async def tick(road: Road) -> int:
    """A tick, as the relay makes them; everything that was committed before it counts as published."""
    async with await connect_psycopg(road.settings, application="tick") as connection:
        made = await Ticks(connection, road.settings.schema).make()
    assert made is not None
    return made.tick


async def age(road: Road, *tasks: UUID, days: int) -> None:
    """Let everything about these tasks be so many days older."""
    for statement in (
        "update postroad.outbox set occurred_at = occurred_at - make_interval(days => :days)",
        "update postroad.task set created_at = created_at - make_interval(days => :days),"
        " finished_at = finished_at - make_interval(days => :days)",
        "update postroad.intake_key set created_at = created_at - make_interval(days => :days)",
    ):
        await road.ask(f"{statement} where task_id = any (:tasks)", days=days, tasks=list(tasks))


async def pruned(road: Road, published: int | None, *, dry_run: bool = False) -> Pruned:
    return await prune(road.engine, road.settings.schema, MONTH, published=published, dry_run=dry_run)


async def test_old_events_that_were_published_go_and_then_their_tasks(road: Road) -> None:
    tasks = [await road.accept() for _ in range(3)]
    for task in tasks:
        await road.complete(task)
    await age(road, *tasks, days=31)

    result = await pruned(road, await tick(road))

    assert (result.leaves, result.tasks, result.busy_leaves) == (1, 3, 0)
    assert await road.count("task", "outbox", "stage_run") == {"task": 0, "outbox": 0, "stage_run": 0}


async def test_what_is_not_old_enough_stays(road: Road) -> None:
    task = await road.accept()
    await road.complete(task)
    await age(road, task, days=29)

    assert await pruned(road, await tick(road)) == Pruned()
    assert (await road.count("task"))["task"] == 1


async def test_events_that_were_not_published_stay_and_so_do_their_tasks(road: Road) -> None:
    before = await tick(road)
    task = await road.accept()
    await road.complete(task)
    await age(road, task, days=40)

    assert await pruned(road, before) == Pruned()
    assert await pruned(road, None) == Pruned()
    assert (await road.count("task"))["task"] == 1


async def test_an_open_task_and_one_with_a_dead_letter_stay_however_old(road: Road) -> None:
    waiting, dead = await road.accept(), await road.accept()
    await road.commit(dead, "pack", Reject("no"))
    await age(road, waiting, dead, days=400)

    result = await pruned(road, await tick(road))

    assert (result.leaves, result.tasks) == (1, 0)
    assert await road.count("task", "dead_letter") == {"task": 2, "dead_letter": 1}
    assert await road.violated() == {}


async def test_a_leaf_that_is_in_use_is_left_and_nobody_waits(road: Road) -> None:
    task = await road.accept()
    await road.complete(task)
    await age(road, task, days=31)
    published = await tick(road)

    async with road.engine.connect() as reader:
        await reader.exec_driver_sql("select count(*) from postroad.outbox")
        assert (await pruned(road, published)).busy_leaves == 1
        await reader.rollback()

    assert (await pruned(road, published)).leaves == 1


async def test_a_dry_run_counts_and_changes_nothing(road: Road) -> None:
    task = await road.accept()
    await road.complete(task)
    await age(road, task, days=31)

    result = await pruned(road, await tick(road), dry_run=True)

    assert result.leaves == 1
    assert (await road.count("task"))["task"] == 1
    assert (await road.count("outbox"))["outbox"] > 0


async def test_a_key_outlives_its_task_by_a_week(road: Road) -> None:
    young, old = await road.accept(key="young"), await road.accept(key="old")
    for task in (young, old):
        await road.complete(task)
    await age(road, young, days=33)
    await age(road, old, days=39)

    result = await pruned(road, await tick(road))

    assert (result.tasks, result.keys) == (2, 1)
    assert await road.ask("select key from postroad.intake_key") == [("young",)]
    assert await road.violated() == {}


async def test_ticks_that_no_marker_needs_go_but_never_the_bounds_of_its_window(road: Road) -> None:
    ticks = [await tick(road) for _ in range(5)]
    await road.ask("update postroad.tick set made_at = made_at - interval '60 days'")

    result = await pruned(road, ticks[3])

    left = [row[0] for row in await road.ask("select tick from postroad.tick order by tick")]
    assert left == ticks[2:]
    assert result.ticks == 3
