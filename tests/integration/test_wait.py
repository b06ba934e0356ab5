"""Waiting for the end of a task over HTTP: who waits for how long, and what it costs."""

import asyncio
import time
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from sqlalchemy import event

from postroad import Settings
from postroad.intake import watch as watching
from postroad.intake.app import create_app
from postroad.intake.watch import Full, Watch
from postroad.testing.traffic import until
from tests.integration.door import Door, line, open_door, open_port, problem, raw
from tests.integration.road import Road, die, pipeline

LONG = 25
"""Seconds that no test waits for: who asks for so many is answered sooner."""


async def end_later(road: Road, task_id: UUID) -> None:
    """Complete a task once somebody has waited for it for a few looks."""
    await asyncio.sleep(3 * watching.INTERVAL)
    await road.complete(task_id)


async def timed(asked: Any) -> tuple[httpx2.Response, float]:
    """An answer, and the seconds that it took."""
    began = time.monotonic()
    return await asked, time.monotonic() - began


@pytest.mark.parametrize("how", ["query", "header"])
async def test_a_waiter_is_answered_when_the_task_has_ended(door: Door, how: str) -> None:
    task_id = await door.road.accept()
    query, headers = (f"?wait={LONG}", {}) if how == "query" else ("", {"Prefer": f"wait={LONG}"})

    (answer, seconds), _ = await asyncio.gather(
        timed(door.client.get(f"/v1/tasks/{task_id}{query}", headers=headers)), end_later(door.road, task_id)
    )

    assert (answer.status_code, answer.json()["status"]) == (200, "completed")
    assert seconds < LONG / 2
    assert answer.headers.get("preference-applied") == (f"wait={LONG}" if how == "header" else None)


async def test_a_waiter_is_answered_when_the_time_is_up(door: Door) -> None:
    task_id = await door.road.accept()

    answer, seconds = await timed(door.client.get(f"/v1/tasks/{task_id}?wait=1"))

    assert (answer.status_code, answer.json()["status"]) == (200, "pending")
    assert 0.9 < seconds < LONG / 2


async def test_nobody_waits_for_what_has_ended_or_is_unknown(door: Door) -> None:
    failed = await die(door.road, "ride")

    for path, status in ((f"/v1/tasks/{failed}", 200), (f"/v1/tasks/{uuid4()}", 404)):
        answer, seconds = await timed(door.client.get(f"{path}?wait={LONG}"))
        assert answer.status_code == status
        assert seconds < LONG / 2


async def test_a_wait_that_cannot_be_is_refused_and_a_preference_ignored(door: Door, subtests: pytest.Subtests) -> None:
    path = f"/v1/tasks/{await door.road.accept()}"

    for value in ("31", "-1", "soon", "1.5", "", "1&wait=1"):
        with subtests.test(wait=value):
            assert "wait" in problem(await door.client.get(f"{path}?wait={value}"), 400, "malformed")["detail"]
    for value in ("wait=soon", "wait", "wait=-1", "return=minimal", "wait=0", 'waiting="5"', "\xe4"):
        with subtests.test(prefer=value):
            answer = await door.client.get(path, headers=[(b"Prefer", value.encode("latin-1"))])
            assert answer.status_code == 200
            assert answer.headers.get("preference-applied") in (None, "wait=0")


async def test_of_several_preferences_the_first_wait_holds_and_a_long_one_is_cut(door: Door) -> None:
    task_id = await door.road.accept()
    await door.road.complete(task_id)

    for given, applied in (
        ("respond-async, WAIT=7;x=y, wait=9", "wait=7"),
        ('wait="8"', "wait=8"),
        (r'odd="a,wait=1\",wait=2", wait=3', "wait=3"),
        ("wait=100", "wait=30"),
    ):
        answer = await door.client.get(f"/v1/tasks/{task_id}", headers={"Prefer": given})
        assert answer.headers["preference-applied"] == applied


# Submitting


async def test_who_submits_may_wait_for_the_task(door: Door) -> None:
    task_id = uuid4()

    async def complete() -> None:
        await until(lambda: is_there(door.road, task_id))
        await door.road.complete(task_id)

    answer, _ = await asyncio.gather(door.post(raw(line(task_id=str(task_id))), Prefer=f"wait={LONG}"), complete())

    assert answer.status_code == 200
    assert (answer.json()["status"], len(answer.json()["stages"])) == ("completed", 4)
    assert answer.headers["preference-applied"] == f"wait={LONG}"
    assert answer.headers["location"] == f"/v1/tasks/{task_id}"


async def is_there(road: Road, task_id: UUID) -> bool:
    """True once a task has been accepted."""
    return bool(await road.ask("select from postroad.task where task_id = :id", id=task_id))


async def test_who_submits_what_does_not_end_in_time_is_told_that_it_is_accepted(door: Door) -> None:
    answer, seconds = await timed(door.post(raw(line()), Prefer="wait=1"))

    assert (answer.status_code, answer.json()["status"]) == (202, "pending")
    assert answer.headers["preference-applied"] == "wait=1"
    assert seconds > 0.9


async def test_a_task_is_accepted_where_nobody_more_may_wait(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "WAITERS", 0)

    answer = await door.post(raw(line()), Prefer=f"wait={LONG}")

    assert answer.status_code == 202
    assert "preference-applied" not in answer.headers
    path = answer.headers["location"]
    refused = await door.client.get(f"{path}?wait={LONG}")
    problem(refused, 503, "full")
    assert refused.headers["retry-after"]
    assert (await door.client.get(path)).status_code == 200


# Many, and the end


async def test_a_thousand_who_wait_are_one_question_and_hold_no_connection(road: Road) -> None:
    one = pipeline("one", pack=())
    await road.deploy(one)
    tasks = [await road.accept(one) for _ in range(10)]
    watch = Watch(road.engine, road.settings.schema)
    asked = 0

    @event.listens_for(road.engine.sync_engine, "before_cursor_execute")
    def count(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        nonlocal asked
        asked += "unnest" in statement and "status in ('completed', 'failed', 'cancelled')" in statement

    async with asyncio.TaskGroup() as group:
        waiters = [group.create_task(watch.ended(tasks[number % 10], within=LONG)) for number in range(1000)]
        await until(lambda: is_more(lambda: asked, 2))
        assert not any(waiter.done() for waiter in waiters)
        looks = asked
        for task_id in tasks:
            await road.complete(task_id, one)

    assert all(waiter.result() for waiter in waiters)
    assert looks < 20
    await watch.close()


async def is_more(count: Any, least: int) -> bool:
    """True once ``count`` has come to ``least``."""
    return int(count()) >= least


async def test_no_more_may_wait_than_are_bearable(road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "WAITERS", 2)
    watch = Watch(road.engine, road.settings.schema)
    task_id = await road.accept()
    waiters = [asyncio.create_task(watch.ended(task_id, within=LONG)) for _ in range(2)]
    await asyncio.sleep(0)

    with pytest.raises(Full):
        await watch.ended(task_id, within=LONG)

    watch.stop()
    assert await asyncio.gather(*waiters) == [False, False]
    assert await watch.ended(task_id, within=LONG) is False
    await watch.close()


async def test_who_waits_does_not_mind_postgres_being_away_for_a_while(
    road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(road.engine, road.settings.schema)
    task_id = await road.accept()
    waiter = asyncio.create_task(watch.ended(task_id, within=LONG))
    await asyncio.sleep(watching.INTERVAL)

    await road.ask(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    await until(lambda: is_completed(road, task_id))

    assert await waiter
    await watch.close()


async def is_completed(road: Road, task_id: UUID) -> bool:
    """True once a task could be completed: the connections of the pool were ended, and are made anew one by one."""
    try:
        await road.complete(task_id)
    except Exception:
        return False
    return True


async def test_a_client_that_has_gone_waits_no_longer(settings: Settings, road: Road) -> None:
    task_id = await road.accept()
    began = time.monotonic()
    async with (
        open_port(create_app(settings)) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        with pytest.raises(httpx2.ReadTimeout):
            await client.get(f"/v1/tasks/{task_id}?wait={LONG}", timeout=0.5)

    # The server has ended, which waits for whatever is still being answered.
    assert time.monotonic() - began < LONG / 2


async def test_a_server_that_stops_answers_who_waits(settings: Settings, road: Road) -> None:
    task_id = await road.accept()
    async with open_door(settings) as client:
        waiting = asyncio.create_task(client.get(f"/v1/tasks/{task_id}?wait={LONG}"))
        await asyncio.sleep(2 * watching.INTERVAL)
        client._transport.app.state.stop()  # type: ignore[attr-defined]

        assert (await waiting).json()["status"] == "pending"


async def test_when_the_app_ends_nobody_waits_any_more_and_postgres_is_not_asked(
    settings: Settings, road: Road
) -> None:
    """Also under a server that does not call ``state.stop()``: a look that went on would outlive its connections."""
    app = create_app(settings)
    watch: Watch = app.state.stop.__self__
    task_id = await road.accept()

    async with app.router.lifespan_context(app):
        waiting = asyncio.create_task(watch.ended(task_id, within=LONG))
        await until(lambda: _looks(watch))

    async with asyncio.timeout(5):
        assert await waiting is False
    assert not await _looks(watch)


async def _looks(watch: Watch) -> bool:
    return watch._looking is not None and not watch._looking.done()
