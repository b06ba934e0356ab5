"""Who did what, why, and how it was before and after: in one trail, whoever asked and however."""

from typing import Any

import pytest

from postroad.core.errors import NotFoundError
from postroad.intake import keys, schedules
from postroad.intake.dead_letters import Selection, discard, find_dead_letters, requeue
from postroad.intake.limits import set_limits
from postroad.intake.pause import set_paused
from tests.integration.door import Door
from tests.integration.road import Road, die

WHO: dict[str, Any] = {"by": "ada", "reason": "a storm"}


async def recorded(road: Road) -> list[tuple[Any, ...]]:
    """What is recorded of operations, the oldest first."""
    return await road.ask(
        "select by, action, target, pipeline, reason, before, after from postroad.operation order by operation_id"
    )


async def test_a_stage_that_is_switched_or_limited_is_recorded_if_that_changed_it(road: Road) -> None:
    async with road.engine.begin() as connection:
        for paused in (True, True, False):
            await set_paused(connection, "travel", "ride", "postroad", paused=paused, **WHO)
        await set_limits(connection, "travel", "ride", {"rate": "5/s", "burst": None}, **WHO)
        await set_limits(connection, "travel", "ride", {"rate": None, "max_running": 2}, by="bob")

    stage = ("travel.ride", "travel")
    assert await recorded(road) == [
        ("ada", "pause", *stage, "a storm", {"paused": False}, {"paused": True}),
        ("ada", "resume", *stage, "a storm", {"paused": True}, {"paused": False}),
        (
            "ada", "set limits", *stage, "a storm",
            {"rate": None, "burst": None, "max_running": None}, {"rate": "5/s", "burst": None, "max_running": None},
        ),
        (
            "bob", "set limits", *stage, None,
            {"rate": "5/s", "burst": None, "max_running": None}, {"rate": None, "burst": None, "max_running": 2},
        ),
    ]  # fmt: skip
    assert await road.ask("select switched_by, switched_at is not null from postroad.stage where stage = 'ride'") == [
        ("ada", True)
    ]


async def test_who_switched_a_stage_first_stays_though_another_asks_for_the_same(road: Road) -> None:
    for by in ("ada", "bob"):
        async with road.engine.begin() as connection:
            await set_paused(connection, "travel", "ride", "postroad", paused=True, by=by)

    assert await road.ask("select distinct switched_by from postroad.stage where paused") == [("ada",)]


async def test_keys_are_recorded_without_their_secrets(road: Road) -> None:
    async with road.engine.begin() as connection:
        key, row = await keys.create(connection, "shop", ["read"], pipelines=["travel"], rate="5/s", **WHO)
        assert await keys.revoke(connection, row["key_id"], by="bob")
        assert not await keys.revoke(connection, row["key_id"], by="bob")

    made = {"name": "shop", "scopes": ["read"], "pipelines": ["travel"], "rate": "5/s", "burst": None}
    assert await recorded(road) == [
        ("ada", "create key", row["key_id"], None, "a storm", None, made | {"expires_at": None}),
        (
            "bob", "revoke key", row["key_id"], None, None,
            {"name": "shop", "revoked": False}, {"name": "shop", "revoked": True},
        ),
    ]  # fmt: skip
    assert key.split("_")[2] not in str(await recorded(road))


async def test_whatever_is_done_to_a_schedule_is_recorded(road: Road) -> None:
    async with road.engine.begin() as connection:
        await schedules.add(connection, "nightly", "travel", "0 0 * * *", "postroad", payload={"secret": 1}, **WHO)
        await schedules.add(connection, "nightly", "travel", "0 1 * * *", "postroad", replace=True, by="bob")
        await schedules.pause(connection, "nightly", **WHO)
        await schedules.pause(connection, "nightly", **WHO)
        await schedules.resume(connection, "nightly", **WHO)
        task_id = await schedules.run_now(connection, "nightly", "postroad", **WHO)
        await schedules.remove(connection, "nightly", **WHO)

    rows = await recorded(road)
    assert [(by, action) for by, action, *_ in rows] == [
        ("ada", "add schedule"), ("bob", "replace schedule"), ("ada", "pause schedule"), ("ada", "resume schedule"),
        ("ada", "run schedule"), ("ada", "remove schedule"),
    ]  # fmt: skip
    assert {row[2:4] for row in rows} == {("nightly", "travel")}
    assert [(before or {}).get("cron") for *_, before, _ in rows] == [None, "0 0 * * *", None, None, None, "0 1 * * *"]
    assert [(after or {}).get("cron") for *_, after in rows] == ["0 0 * * *", "0 1 * * *", None, None, None, None]
    assert rows[4][-1] == {"task_id": str(task_id)}
    assert "secret" not in str(rows)


async def test_what_is_not_there_is_not_recorded(road: Road) -> None:
    async with road.engine.connect() as connection:
        for change in (
            set_paused(connection, "travel", "nowhere", "postroad", paused=True, **WHO),
            set_limits(connection, "travel", "nowhere", {"max_running": 1}, **WHO),
            keys.revoke(connection, "0" * 12, **WHO),
            schedules.remove(connection, "nightly", **WHO),
        ):
            with pytest.raises(NotFoundError):
                await change
        await connection.commit()

    assert await recorded(road) == []


@pytest.mark.parametrize("resolve", [requeue, discard], ids=["requeue", "discard"])
async def test_many_dead_letters_are_one_operation_which_their_events_name(road: Road, resolve: Any) -> None:
    tasks = [await die(road, "ride"), await die(road, "ride", "rest")]
    async with road.engine.begin() as connection:
        letters = [letter for letter, _ in await find_dead_letters(connection, Selection())]
        await resolve(connection, letters, "postroad", on_behalf_of="bob", **WHO)

    name = resolve.__name__
    assert await recorded(road) == [
        (
            "ada", name, "dead letters", None, "a storm", None,
            {"letters": 3, "stages": ["travel.rest", "travel.ride"]},
        )
    ]  # fmt: skip
    assert await road.ask(
        "select task_id, count(*) from postroad.outbox join postroad.operation"
        "    on operation_id = (data ->> 'operation')::bigint group by 1 order by 1"
    ) == sorted(zip(tasks, [1, 2], strict=True))


async def test_one_dead_letter_is_an_event_and_no_operation(road: Road) -> None:
    task_id = await die(road, "ride")
    async with road.engine.begin() as connection:
        letters = [letter for letter, _ in await find_dead_letters(connection, Selection(tasks=[task_id]))]
        await requeue(connection, letters, "postroad", **WHO)

    assert await recorded(road) == []
    assert await road.ask(
        "select data - 'before' - 'after', data -> 'before', data -> 'after' from postroad.outbox"
        " where type = 'StageRequeued'"
    ) == [
        (
            WHO,
            {"status": "failed", "attempts": 1, "reason": "no road"},
            {"status": "in_progress", "attempts": 0},
        )
    ]


async def test_what_is_asked_over_http_is_recorded_under_the_key(door: Door) -> None:
    header = await door.key("operate", name="ops")
    for action in ("pause", "resume"):
        answer = await door.client.post(
            f"/v1/pipelines/travel/stages/ride/{action}", json={"by": "ada", "reason": "a storm"}, headers=header
        )
        assert answer.json()["changed"]

    rows = await door.road.ask(
        "select by, on_behalf_of, action, reason from postroad.operation where pipeline = 'travel' order by at"
    )
    assert rows == [("key:ops", "ada", "pause", "a storm"), ("key:ops", "ada", "resume", "a storm")]


async def test_a_tasks_journey_has_how_it_was_before_and_after(door: Door) -> None:
    retried, cancelled = await die(door.road, "ride"), await door.road.accept()

    await door.client.post(f"/v1/tasks/{retried}/retry", json={"from": "pack"})
    await door.client.post(f"/v1/tasks/{cancelled}/cancel")

    changes = await door.road.ask(
        "select type, data -> 'before', data -> 'after' from postroad.outbox"
        " where type in ('TaskRetried', 'TaskCancelled') order by position"
    )
    assert changes == [
        (
            "TaskRetried",
            {"status": "failed", "stage_status": "failed_at_stage:ride", "stages_done": ["pack"]},
            {"status": "in_progress", "stage_status": "retried_from:pack", "stages_done": []},
        ),
        ("TaskCancelled", {"status": "pending", "stage_status": "received"}, {"status": "cancelled"}),
    ]
