"""Schedules: each tick is submitted once, whoever runs it, and however often; and what people do with them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from postroad import Settings
from postroad.core.database import connect_psycopg
from postroad.core.errors import DeclarationError, NotFoundError, RefusedError, UnstorableError
from postroad.intake import schedules
from postroad.relay import schedule
from postroad.relay.relay import Relay
from postroad.relay.schedule import Scheduler
from postroad.testing.traffic import until
from tests.integration.road import TRAVEL, Road, open_road

YEARLY = "0 0 1 1 *"
"""A line with no tick while a test runs."""


async def add(road: Road, name: str = "nightly", cron: str = "* * * * *", **options: Any) -> datetime:
    """Make a schedule for ``travel``."""
    async with road.engine.begin() as connection:
        return await schedules.add(
            connection, name, options.pop("pipeline", "travel"), cron, "postroad", by="ada", **options
        )


async def put_back(road: Road, name: str, by: timedelta) -> datetime:
    """Let the next tick of a schedule have come ``by`` so long ago; returns it."""
    ((at,),) = await road.ask(
        "update postroad.schedule set next_at = date_trunc('minute', now()) - cast(:by as interval)"
        " where schedule = :name returning next_at",
        by=by,
        name=name,
    )
    assert isinstance(at, datetime)
    return at


async def row(road: Road, name: str = "nightly") -> dict[str, Any]:
    async with road.engine.begin() as connection:
        return next(dict(one) for one in await schedules.list_schedules(connection) if one["schedule"] == name)


@asynccontextmanager
async def session(road: Road) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await connect_psycopg(road.settings, application="postroad schedule") as connection:
        yield connection


async def run_round(road: Road) -> int:
    async with session(road) as connection:
        return await Scheduler(road.settings).round(connection)


async def keys(road: Road) -> list[str]:
    return [key for (key,) in await road.ask("select key from postroad.intake_key order by key")]


# Ticks


async def test_nothing_is_submitted_before_its_time(road: Road) -> None:
    first = await add(road, cron=YEARLY)

    assert await run_round(road) == 0
    assert first > datetime.now(UTC)
    assert await road.count("task") == {"task": 0}


async def test_a_tick_is_submitted_and_the_next_one_is_ahead(road: Road) -> None:
    await add(road, payload={"what": "report"}, labels={"team": "blue"})
    tick = await put_back(road, "nightly", timedelta())

    assert await run_round(road) == 1
    assert await run_round(road) == 0

    after = await row(road)
    assert await keys(road) == [f"schedule/nightly/{tick.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"]
    assert await road.task(after["last_task"], "pipeline", "payload", "labels", "status") == (
        "travel",
        {"what": "report"},
        {"team": "blue"},
        "pending",
    )
    assert after["last_at"] == tick
    assert tick < after["next_at"] <= tick + timedelta(minutes=2)
    assert await road.violated() == {}


async def test_of_the_ticks_that_were_missed_the_latest_is_submitted(road: Road) -> None:
    await add(road)
    missed = await put_back(road, "nightly", timedelta(days=40))

    assert await run_round(road) == 1
    assert await run_round(road) == 0

    assert await road.count("task") == {"task": 1}
    assert (await row(road))["last_at"] > missed + timedelta(days=39)


async def test_two_at_once_submit_a_tick_once(road: Road) -> None:
    for number in range(20):
        await add(road, f"s{number}")
        await put_back(road, f"s{number}", timedelta())

    ran = await asyncio.gather(*(run_round(road) for _ in range(4)))

    assert await road.count("task") == {"task": 20}
    assert sum(ran) == 20
    assert await road.violated() == {}


async def test_a_tick_whose_run_was_killed_is_submitted_once_by_the_next(road: Road) -> None:
    await add(road)
    tick = await put_back(road, "nightly", timedelta())
    key = f"schedule/nightly/{tick.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    async with road.engine.connect() as other, session(road) as connection:
        # With the same key under way elsewhere the run comes to a halt in the middle of its transaction.
        await other.exec_driver_sql(
            "insert into postroad.intake_key (pipeline, key, request_hash, task_id)"
            " values ('travel', %(key)s, '', gen_random_uuid())",
            {"key": key},
        )
        running = asyncio.create_task(Scheduler(road.settings).round(connection))
        await road.until_waiting(1)
        await road.ask("select pg_terminate_backend(:pid)", pid=connection.info.backend_pid)
        with pytest.raises(psycopg.OperationalError):
            await running
        await other.rollback()
    assert await road.count("task") == {"task": 0}

    assert await run_round(road) == 1

    assert await keys(road) == [key]
    assert await road.count("task") == {"task": 1}


async def test_a_schedule_that_goes_back_submits_no_tick_twice(road: Road) -> None:
    await add(road, cron=YEARLY)
    await road.ask("update postroad.schedule set next_at = '2026-01-01'")
    assert await run_round(road) == 1
    before = await row(road)

    # As after a restore of this one table, by a hand that knows no better.
    await road.ask("update postroad.schedule set next_at = '2026-01-01', last_at = null, last_task = null")
    assert await run_round(road) == 1

    assert await row(road) == before
    assert await road.count("task") == {"task": 1}
    assert await road.violated() == {}


async def test_one_whose_line_or_zone_is_none_any_more_holds_up_no_other(road: Road) -> None:
    for name in ("bad", "good"):
        await add(road, name)
        await put_back(road, name, timedelta())
    await road.ask("update postroad.schedule set timezone = 'Mars/Phobos' where schedule = 'bad'")

    assert await run_round(road) == 2

    assert await road.count("task") == {"task": 1}
    assert (await row(road, "bad"))["last_at"] is None
    assert await run_round(road) == 0, "it rests"


async def test_one_whose_key_stands_for_something_else_goes_on_with_the_next_tick(road: Road) -> None:
    await add(road)
    tick = await put_back(road, "nightly", timedelta())
    await road.accept(payload="other", key=f"schedule/nightly/{tick.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}")

    assert await run_round(road) == 1

    assert await road.count("task") == {"task": 1}
    after = await row(road)
    assert after["next_at"] > tick
    assert after["last_task"] is None


async def test_a_relay_that_is_stopped_in_its_tracks_does_not_hold_a_schedule_for_long(
    road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    async def stop(*_: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    await add(road, cron=YEARLY)
    await road.ask("update postroad.schedule set next_at = '2026-01-01'")
    monkeypatch.setattr(schedule, "HELD", "2s")
    with monkeypatch.context() as stopped:
        stopped.setattr(schedule, "accept", stop)
        stopping = asyncio.create_task(Scheduler(road.settings).run())
        await reached.wait()
    assert await run_round(road) == 0

    async def has_run() -> bool:
        return await run_round(road) == 1

    await until(has_run, seconds=20)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    assert await road.count("task") == {"task": 1}


async def test_the_relay_that_works_runs_them(settings: Settings) -> None:
    async with open_road(settings, TRAVEL) as road:
        await add(road)
        await put_back(road, "nightly", timedelta())
        relays = [asyncio.create_task(Relay(settings).run()) for _ in range(2)]
        try:
            await until(lambda: _has_run(road), seconds=30)
        finally:
            for relay in relays:
                relay.cancel()
            await asyncio.gather(*relays, return_exceptions=True)

        assert len(await keys(road)) == len(await road.ask("select from postroad.task"))
        assert await road.violated() == {}


async def _has_run(road: Road) -> bool:
    return (await row(road))["last_task"] is not None


# What people do


async def test_a_paused_schedule_lets_its_ticks_pass(road: Road) -> None:
    first = await add(road, cron=YEARLY)
    async with road.engine.begin() as connection:
        assert await schedules.pause(connection, "nightly", by="ada")
        assert not await schedules.pause(connection, "nightly", by="ada")
    await road.ask("update postroad.schedule set next_at = '2026-01-01'")
    assert await run_round(road) == 0

    async with road.engine.begin() as connection:
        assert await schedules.resume(connection, "nightly", by="ada") == first
        assert await schedules.resume(connection, "nightly", by="ada") == first

    assert await run_round(road) == 0
    assert await road.count("task") == {"task": 0}


async def test_a_schedule_can_be_run_now_beside_its_ticks(road: Road) -> None:
    first = await add(road, cron=YEARLY, payload=[1], labels={"a": "b"})

    async with road.engine.begin() as connection:
        await schedules.pause(connection, "nightly", by="ada")
        tasks = [await schedules.run_now(connection, "nightly", "postroad", by="ada") for _ in range(2)]

    assert len(set(tasks)) == 2
    assert await road.task(tasks[0], "payload", "labels") == ([1], {"a": "b"})
    assert (await row(road))["next_at"] == first
    assert await keys(road) == []


async def test_a_schedule_can_be_replaced_and_removed(road: Road) -> None:
    await add(road)
    with pytest.raises(RefusedError, match="a schedule 'nightly' already"):
        await add(road, cron=YEARLY)
    await add(road, cron=YEARLY, payload={"x": None}, timezone="Europe/Berlin", replace=True)
    assert (await row(road))["cron"] == YEARLY
    assert (await row(road))["payload"] == {"x": None}

    async with road.engine.begin() as connection:
        await schedules.remove(connection, "nightly", by="ada")
        assert await schedules.list_schedules(connection) == []
        for missing in (
            schedules.remove(connection, "nightly", by="ada"),
            schedules.pause(connection, "nightly", by="ada"),
            schedules.resume(connection, "nightly", by="ada"),
            schedules.run_now(connection, "nightly", "postroad", by="ada"),
        ):
            with pytest.raises(NotFoundError, match="no schedule 'nightly'"):
                await missing


async def test_what_could_never_be_submitted_is_no_schedule(road: Road) -> None:
    for options, error, said in (
        ({"name": "a b"}, DeclarationError, "name of a schedule is"),
        ({"name": ""}, DeclarationError, "name of a schedule is"),
        ({"name": "x" * 64}, DeclarationError, "name of a schedule is"),
        ({"cron": "61 * * * *"}, DeclarationError, "is no cron line: Bad minute"),
        ({"timezone": "Mars/Phobos"}, DeclarationError, "no time zone 'Mars/Phobos'"),
        ({"pipeline": "nowhere"}, NotFoundError, "no pipeline 'nowhere'"),
        ({"payload": {"n": float("nan")}}, UnstorableError, "not finite"),
        ({"labels": {"a b": "c"}}, UnstorableError, "a label's name is"),
    ):
        with pytest.raises(error, match=said):
            await add(road, **options)

    assert await road.count("schedule", "task") == {"schedule": 0, "task": 0}
