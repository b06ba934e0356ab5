"""Dead letters: found by what they have in common, and given another chance exactly once."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from postroad import Reject, Retry
from postroad.intake.dead_letters import Selection, list_dead_letters, requeue
from tests.integration.road import Road, die, pipeline

RETURN = pipeline("return", pack=(), ride="pack")


async def letters(road: Road, *, after: int = 0, limit: int = 100, **filters: Any) -> list[int]:
    """The ids of the unresolved dead letters that match."""
    async with road.engine.connect() as connection:
        found = await list_dead_letters(connection, Selection(**filters), after=after, limit=limit)
    return [letter["dead_letter_id"] for letter in found]


async def again(road: Road, *ids: int, by: str = "ada") -> list[tuple[UUID, str]]:
    """Requeue, in a transaction of its own."""
    async with road.engine.begin() as connection:
        return await requeue(connection, ids, road.settings.schema, by=by, reason="the road is open")


async def test_dead_letters_are_listed_the_oldest_first_with_what_is_known_of_them(road: Road) -> None:
    task_id = await road.accept()
    await road.commit(task_id, "pack")
    for _ in range(3):
        await road.commit(task_id, "ride", Retry("no horse 17"))
    other = await die(road, "ride", reason="no horse 18")

    async with road.engine.connect() as connection:
        first, second = await list_dead_letters(connection)

    assert (first["task_id"], second["task_id"]) == (task_id, other)
    names = ("pipeline", "stage", "reason", "attempts", "resolved_at", "resolution", "resolved_by")
    assert [first[name] for name in names] == ["travel", "ride", "no horse 17", 3, None, None, None]
    assert second["attempts"] == 1
    assert first["fingerprint"] == second["fingerprint"]


async def test_dead_letters_are_filtered(road: Road) -> None:
    await road.deploy(RETURN)
    one, two = await die(road, "ride", "rest"), await die(road, "rest", reason="no inn")
    back = await road.accept(RETURN)
    await road.commit(back, "pack", Reject("no road"), pipeline=RETURN)

    async with road.engine.connect() as connection:
        found = await list_dead_letters(connection)
    ride, rest, inn, pack = (letter["dead_letter_id"] for letter in found)

    assert await letters(road, tasks=[one]) == [ride, rest]
    assert await letters(road, tasks=[two]) == [inn]
    assert await letters(road, stage="rest") == [rest, inn]
    assert await letters(road, pipeline="return") == [pack]
    assert await letters(road, fingerprint=found[0]["fingerprint"]) == [ride, rest, pack]
    assert await letters(road, pipeline="travel", stage="rest", fingerprint=found[2]["fingerprint"]) == [inn]
    assert await letters(road, limit=3) == [ride, rest, inn]
    assert await letters(road, after=rest) == [inn, pack]
    assert await letters(road, ids=[pack, rest]) == [rest, pack]
    assert await letters(road, ids=[pack], tasks=[two]) == [inn, pack]
    assert await letters(road, ids=[pack], stage="rest") == []
    assert await letters(road, ids=[]) == []
    assert await letters(road, pipeline="voyage") == []
    assert await letters(road, tasks=[uuid4()]) == []


async def test_a_requeued_stage_begins_anew_with_all_its_attempts(road: Road) -> None:
    task_id = await die(road, "ride")
    (letter,) = await letters(road)

    assert await again(road, letter) == [(task_id, "ride")]

    assert await letters(road) == []
    columns = ("status", "stage_status", "finished_at", "version")
    assert await road.task(task_id, *columns) == ("in_progress", "failed_at_stage:ride", None, 4)
    runs = await road.ask(
        "select status, attempts, next_retry_at, finished_at from postroad.stage_run where stage = 'ride'"
    )
    assert runs == [("failed", 0, None, None)]
    resolved = await road.ask("select resolution, resolved_by, resolved_at is null from postroad.dead_letter")
    assert resolved == [("requeued", "ada", False)]
    requested = {"StageRequested:ride", "StageRequested:rest"}
    *before, first, second = await road.events(task_id)
    assert before == ["TaskCreated", "StageCompleted:pack", "StageDead:ride", "TaskFailed", "StageRequeued:ride"]
    assert {first, second} == requested
    (told,) = await road.ask("select data - 'before' - 'after' from postroad.outbox where type = 'StageRequeued'")
    assert told == ({"by": "ada", "reason": "the road is open"},)
    assert await road.violated() == {}


async def test_a_requeued_task_travels_on_to_its_end(road: Road) -> None:
    task_id = await die(road, "ride")

    await again(road, *await letters(road))
    for stage in ("ride", "rest", "arrive"):
        await road.commit(task_id, stage)

    assert await road.task(task_id, "status", "stages_done") == ("completed", ["pack", "ride", "rest", "arrive"])
    assert await road.violated() == {}


async def test_a_requeued_stage_may_die_again_and_be_requeued_again(road: Road) -> None:
    task_id = await die(road, "ride")

    for _ in range(3):
        await again(road, *await letters(road))
        assert await road.task(task_id, "status") == ("in_progress",)
        await road.commit(task_id, "ride", Reject("still no road"))
        assert await road.task(task_id, "status") == ("failed",)
        assert await road.violated() == {}

    assert len(await letters(road)) == 1
    assert await road.count("dead_letter") == {"dead_letter": 4}


async def test_a_task_with_two_dead_stages_stays_failed_until_the_last_is_requeued(road: Road) -> None:
    task_id = await die(road, "ride", "rest")
    ride, rest = await letters(road)

    assert await again(road, ride) == [(task_id, "ride")]
    assert (await road.task(task_id, "status", "finished_at"))[0] == "failed"
    assert (await road.task(task_id, "finished_at")) != (None,)
    assert (await road.events(task_id))[-1] == "StageRequested:ride"
    assert await road.violated() == {}

    assert await again(road, rest) == [(task_id, "rest")]
    assert await road.task(task_id, "status", "finished_at", "version") == ("in_progress", None, 6)
    assert await road.violated() == {}


async def test_both_dead_stages_of_a_task_may_be_requeued_at_once(road: Road) -> None:
    task_id = await die(road, "ride", "rest")

    requeued = await again(road, *await letters(road))

    assert sorted(requeued) == [(task_id, "rest"), (task_id, "ride")]
    assert await road.task(task_id, "status", "version") == ("in_progress", 6)
    events = await road.events(task_id)
    assert sorted(events[-4:]) == [
        "StageRequested:rest",
        "StageRequested:ride",
        "StageRequeued:rest",
        "StageRequeued:ride",
    ]
    assert await road.violated() == {}


async def test_what_is_resolved_or_unknown_is_left_alone(road: Road) -> None:
    task_id = await die(road, "ride")
    (letter,) = await letters(road)
    await again(road, letter)
    before = await road.task(task_id, "version"), await road.events(task_id)

    assert await again(road, letter, by="bob") == []
    assert await again(road, letter + 1000) == []
    assert await again(road) == []

    assert (await road.task(task_id, "version"), await road.events(task_id)) == before
    assert await road.ask("select resolved_by from postroad.dead_letter") == [("ada",)]
    assert await road.violated() == {}


async def test_the_dead_stage_of_a_cancelled_task_is_left_alone(road: Road) -> None:
    task_id = await die(road, "ride")
    await road.ask(
        "with cancelled as (update postroad.task set status = 'cancelled', version = version + 1)"
        " insert into postroad.outbox (task_id, pipeline, type) values (:id, 'travel', 'TaskCancelled')",
        id=task_id,
    )

    assert await again(road, *await letters(road)) == []

    assert await road.task(task_id, "status") == ("cancelled",)
    assert (await road.events(task_id))[-1] == "TaskCancelled"
    assert await road.violated() == {}


async def test_people_who_requeue_the_same_letters_at_once_requeue_each_once(road: Road) -> None:
    tasks = [await die(road, "ride") for _ in range(20)]
    ids = await letters(road)

    answers = await asyncio.gather(
        *(again(road, *(ids if turn % 2 else reversed(ids)), by=f"person{turn}") for turn in range(8))
    )

    assert sorted(pair for answer in answers for pair in answer) == sorted((task_id, "ride") for task_id in tasks)
    assert await road.ask("select count(*) from postroad.outbox where type = 'StageRequeued'") == [(20,)]
    assert await road.ask("select distinct status, version from postroad.task") == [("in_progress", 4)]
    assert await road.violated() == {}


@pytest.mark.parametrize("others", [0, 2])
async def test_people_who_requeue_different_stages_of_a_task_at_once_set_it_going(road: Road, others: int) -> None:
    for _ in range(8):
        task_id = await die(road, "ride", "rest")
        ride, rest = await letters(road, tasks=[task_id])

        await asyncio.gather(again(road, ride), again(road, rest), *(again(road, ride, rest) for _ in range(others)))

        assert await road.task(task_id, "status", "version") == ("in_progress", 6)
    assert await road.violated() == {}


async def test_a_stage_that_dies_while_another_is_requeued_keeps_the_task_failed(road: Road) -> None:
    for _ in range(8):
        task_id = await die(road, "ride")
        (ride,) = await letters(road, tasks=[task_id])

        await asyncio.gather(again(road, ride), road.commit(task_id, "rest", Reject("no inn")))

        assert await road.task(task_id, "status", "version") == ("failed", 5)
    assert await road.violated() == {}
