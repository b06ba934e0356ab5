"""Why a task is where it is: the sentence for every place in which a stage can be, on real servers."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from postroad import Pipeline, Settings, Task
from postroad.core.errors import NotFoundError
from postroad.core.outcome import Handed, Reject, Retry, Snooze
from postroad.core.priority import Priority
from postroad.intake.cancel import cancel
from postroad.intake.dead_letters import Selection, discard, find_dead_letters
from postroad.intake.pause import set_paused
from postroad.outbox.explain import Explanation, Reason, State, explain
from postroad.outbox.whereabouts import Locator
from postroad.testing.traffic import until
from tests.integration.door import Door, problem
from tests.integration.line import Line, open_line
from tests.integration.road import Road, attempt, pipeline

LONG = "2099-01-01T00:00:00Z"


async def explained(road: Road, task_id: UUID, **settings: Any) -> Explanation:
    """Why the task is where it is."""
    locator = Locator(dataclasses.replace(road.settings, **settings))
    try:
        async with road.engine.connect() as connection:
            return await explain(connection, task_id, "postroad", locator)
    finally:
        await locator.aclose()


async def of(road: Road, task_id: UUID, stage: str, **settings: Any) -> Reason:
    """What holds up this stage."""
    found = {reason.stage: reason for reason in (await explained(road, task_id, **settings)).reasons}
    return found[stage]


async def register(road: Road, role: str, *, age: str = "1 s", stages: str = "{}", **columns: Any) -> None:
    """Put a process into the registry that was seen so long ago."""
    await road.ask(
        "insert into postroad.process (process, role, host, pid, version, stages, is_leading, started_at, seen_at)"
        " values (:process, :role, 'h', 1, '0', cast(:stages as text[]), :is_leading, now() - interval '1 day',"
        "         now() - cast(:age as interval))",
        process=columns.get("process", role), role=role, age=age, stages=stages, is_leading=role == "relay",
    )  # fmt: skip


# What Postgres alone can say


async def test_a_task_that_has_ended_says_how(road: Road) -> None:
    completed, cancelled = await road.accept(), await road.accept()
    await road.complete(completed)
    async with road.engine.begin() as connection:
        await cancel(connection, [cancelled], "postroad", by="ada", reason="a storm")

    one, other = await explained(road, completed), await explained(road, cancelled)

    (reason,) = one.reasons
    assert (one.status, reason.state, reason.stage) == ("completed", State.COMPLETED, None)
    assert one.headline == reason.sentence
    assert reason.sentence.startswith("it completed at 20")
    (reason,) = other.reasons
    assert (reason.state, reason.by) == (State.CANCELLED, "ada")
    assert reason.sentence.endswith(" by ada: a storm")


async def test_stages_that_have_a_date_or_a_person_to_wait_for_say_so(road: Road) -> None:
    names = ("retrying", "snoozed", "handed", "scheduled", "dead", "discarded")
    tasks = {name: await road.accept() for name in names}
    for name in names:
        if name != "scheduled":
            await road.commit(tasks[name], "pack")
    await attempt(road, tasks["retrying"], "ride", Retry("no horse", after=60))
    await attempt(road, tasks["snoozed"], "ride", Snooze(60, "night"))
    await attempt(road, tasks["handed"], "ride", Handed(b"x" * 32, timedelta(hours=1)))
    await road.ask("update postroad.task set not_before = :at where task_id = :id", at=LONG, id=tasks["scheduled"])
    for name in ("dead", "discarded"):
        await attempt(road, tasks[name], "ride", Reject("no road"))
    async with road.engine.begin() as connection:
        letters = [letter for letter, _ in await find_dead_letters(connection, Selection(tasks=[tasks["discarded"]]))]
        await discard(connection, letters, "postroad", by="ada")

    found = {
        name: await of(road, task_id, "pack" if name == "scheduled" else "ride") for name, task_id in tasks.items()
    }

    assert {name: str(reason.state) for name, reason in found.items()} == {
        "retrying": "retrying", "snoozed": "retrying", "handed": "waiting", "scheduled": "scheduled", "dead": "dead",
        "discarded": "discarded",
    }  # fmt: skip
    assert [name for name, reason in found.items() if reason.until] == ["retrying", "snoozed", "handed", "scheduled"]
    assert found["retrying"].sentence.endswith(", after attempt 1: no horse")
    assert found["snoozed"].sentence.endswith(", after a snooze: night")
    assert "waits for the report of its service until" in found["handed"].sentence
    assert found["scheduled"].sentence == f"pack may not start before {LONG}"
    assert found["dead"].sentence.startswith("ride is a dead letter since 20")
    assert found["dead"].sentence.endswith(", after 1 attempt: no road")
    assert (found["discarded"].by, found["discarded"].sentence) == (
        "ada",
        "ride was given up: ada discarded its dead letter: no road",
    )


async def test_the_most_telling_comes_first_and_what_waits_for_others_last(road: Road) -> None:
    task_id = await road.accept()
    await road.commit(task_id, "pack")
    await attempt(road, task_id, "rest", Reject("no inn"))

    explanation = await explained(road, task_id)

    assert [(reason.stage, reason.state) for reason in explanation.reasons] == [
        ("rest", State.DEAD),
        ("ride", State.UNPUBLISHED),
        ("arrive", State.BLOCKED),
    ]
    assert explanation.headline == explanation.reasons[0].sentence
    assert explanation.reasons[2].sentence == "arrive waits for rest and ride"


async def test_a_task_that_is_not_there_is_not_found(road: Road) -> None:
    with pytest.raises(NotFoundError):
        await explained(road, uuid4())


async def test_without_any_relay_it_says_since_when(road: Road) -> None:
    task_id = await road.accept()
    never = await of(road, task_id, "pack")
    await register(road, "relay", age="1 h")
    gone = await of(road, task_id, "pack")
    unknown = await of(road, task_id, "pack", redis_url="")

    assert {one.state for one in (never, gone, unknown)} == {State.UNPUBLISHED}
    assert never.sentence.endswith("not yet published: no relay has worked within the last day")
    ((seen_at,),) = await road.ask("select seen_at from postroad.process")
    assert gone.sentence.endswith(f"no relay has worked since {seen_at:%Y-%m-%dT%H:%M:%SZ}")
    assert unknown.sentence == gone.sentence


async def test_without_redis_it_says_what_postgres_knows(road: Road) -> None:
    task_id = await road.accept()
    await register(road, "relay")
    unserved = await of(road, task_id, "pack", redis_url="")
    await register(road, "stage", stages="{travel.pack}")

    not_named = await of(road, task_id, "pack", redis_url="")
    away = await of(road, task_id, "pack", redis_url="redis://127.0.0.1:1/0")

    assert unserved.state is State.UNSERVED
    assert (not_named.state, away.state) == (State.READY, State.READY)
    assert not_named.sentence.endswith("where its entry is cannot be said: REDIS_URL is not set")
    assert "where its entry is cannot be said: Redis does not answer" in away.sentence


async def test_a_stage_that_is_held_up_as_a_whole_says_by_whom_or_by_what(road: Road) -> None:
    task_id = await road.accept()
    await register(road, "relay")

    async def pack(**columns: Any) -> Reason:
        values = ", ".join(f"{name} = :{name}" for name in columns)
        await road.ask(f"update postroad.stage set {values} where stage = 'pack'", **columns)  # noqa: S608
        return await of(road, task_id, "pack", redis_url="")

    never = await of(road, task_id, "pack", redis_url="")
    await register(road, "stage", stages="{travel.pack,travel.ride}", age="20 min")
    gone = await of(road, task_id, "pack", redis_url="")
    await register(road, "stage", stages="{travel.pack}", process="other")
    resting = await pack(resting_until=LONG, trouble="503")
    by_itself = await pack(paused=True, trouble="410 Gone")
    async with road.engine.begin() as connection:
        await set_paused(connection, "travel", "pack", "postroad", paused=False, by="ada")
        await set_paused(connection, "travel", "pack", "postroad", paused=True, by="ada", reason="a storm")
    paused = await of(road, task_id, "pack", redis_url="")

    assert [one.state for one in (never, gone, resting, by_itself, paused)] == [
        State.UNSERVED, State.UNSERVED, State.RESTING, State.PAUSED, State.PAUSED,
    ]  # fmt: skip
    assert never.sentence == "pack has no worker: none was seen within the last day"
    assert gone.since is not None
    assert gone.sentence == f"pack has no worker: none was seen since {gone.since:%Y-%m-%dT%H:%M:%SZ}"
    assert resting.sentence == f"pack rests until {LONG} because of 503"
    assert by_itself.sentence == "pack is paused by itself: 410 Gone"
    assert (paused.by, paused.since is not None) == ("ada", True)
    assert paused.sentence.endswith(" by ada: a storm")


# What only Redis can say


class Gate:
    """Lets attempts begin, and holds them until it opens."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()

    def pipeline(self, **options: Any) -> Pipeline:
        made = Pipeline("travel", priorities=options.pop("priorities", False))

        @made.stage(concurrency=1, **options)
        async def pack(task: Task) -> None:
            await self.is_open.wait()

        return made


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    made = Gate()
    yield made
    made.is_open.set()


async def in_state(line: Line, task_id: UUID, *states: State) -> Reason:
    """What holds up ``pack``, once that is one of ``states``."""

    async def is_so() -> bool:
        for worker in line.workers:
            worker._registration._news.set()
        return (await of(line.road, task_id, "pack")).state in states

    await until(is_so, seconds=20)
    return await of(line.road, task_id, "pack")


async def test_the_whole_way_of_a_task_is_explained(settings: Settings, gate: Gate) -> None:
    async with open_line(settings, gate.pipeline()) as line:
        await until(lambda: line.has_stream("pack"))
        first, second, third = await line.submit(1, 2, 3)

        unserved = await in_state(line, third, State.UNSERVED)
        worker = line.work()
        running = await in_state(line, first, State.RUNNING)
        queued = await in_state(line, third, State.QUEUED)
        next_one = await of(line.road, second, "pack")
        gate.is_open.set()
        await line.are_finished()
        ended = await explained(line.road, first)

    assert unserved.sentence == "pack has no worker: none was seen within the last day"
    assert running.by == worker.name
    assert running.sentence.startswith(f"pack runs on {worker.name} since 20")
    assert running.sentence.endswith(" (attempt 1)")
    assert queued.sentence == "pack is in its stream behind 1 other, for 1 worker"
    assert next_one.sentence == "pack is next in its stream, for 1 worker"
    assert ended.headline.startswith("it completed at ")


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"max_running": 1}, "is next in its stream; as many run as may at once (1)"),
        ({"rate": "1/h", "burst": 1}, "is next in its stream; its rate of 1/h is used up just now"),
    ],
    ids=["max_running", "rate"],
)
async def test_limits_are_named(settings: Settings, gate: Gate, limits: dict[str, Any], says: str) -> None:
    async with open_line(settings, gate.pipeline(**limits)) as line:
        line.work()
        line.work()
        await until(lambda: line.has_stream("pack"))
        first, second = await line.submit(1, 2)

        await in_state(line, first, State.RUNNING)
        limited = await in_state(line, second, State.LIMITED)
        gate.is_open.set()

    assert limited.sentence == f"pack {says}"


async def test_what_a_consumer_holds_is_told_and_whether_it_lives(settings: Settings, gate: Gate) -> None:
    async with open_line(settings, gate.pipeline()) as line:
        await until(lambda: line.has_stream("pack"))
        (task_id,) = await line.submit(1)
        await register(line.road, "stage", stages="{travel.pack}")
        await line.abandon("pack", consumer="h:1:0", deliveries=1, count=1)
        dead = await in_state(line, task_id, State.HELD)
        await line.client.set(line.keys.alive(0, "h:1:0"), 1)
        alive = await in_state(line, task_id, State.HELD)

    assert dead.by == alive.by == "h:1:0"
    assert dead.sentence == (
        "pack was delivered to h:1:0, which has died: another worker takes it over within the lease"
    )
    assert alive.sentence == "pack was delivered to h:1:0, and is about to run"


async def test_what_is_lost_or_parked_and_due_is_told(settings: Settings, gate: Gate) -> None:
    async with open_line(settings, gate.pipeline()) as line:
        await until(lambda: line.has_stream("pack"))
        lost, due = await line.submit(1, 2)
        await register(line.road, "stage", stages="{travel.pack}")
        entries = await line.abandon("pack", consumer="~retry", deliveries=1, count=2)
        parked = await in_state(line, due, State.QUEUED)
        await line.client.xack(line.stream("pack"), "travel.pack", entries[0])
        absent = await in_state(line, lost, State.LOST)

    assert parked.sentence.startswith("pack is due since 20")
    assert parked.sentence.endswith(": the next worker that is free takes it")
    assert absent.sentence.startswith("pack was published, but has no entry in Redis")


async def test_what_the_relay_has_not_published_yet_is_told(settings: Settings) -> None:
    async with open_line(settings, pipeline("travel", pack=())) as line:

        async def is_marked() -> bool:
            return bool(await line.client.exists(line.keys.marker(0)))

        await until(is_marked)
        assert line._relaying is not None
        line._relaying.cancel()
        await asyncio.wait([line._relaying])
        await line.road.ask("delete from postroad.process")
        await register(line.road, "relay")

        (task_id,) = await line.submit(1)
        unpublished = await of(line.road, task_id, "pack")
        ((tick, made_at),) = await line.road.ask("select tick, made_at from postroad.tick order by tick desc limit 1")

    assert unpublished.state is State.UNPUBLISHED
    assert tick > 0
    assert unpublished.sentence.endswith(f"published are the events up to {made_at:%Y-%m-%dT%H:%M:%SZ}")


async def test_the_lane_of_a_priority_is_looked_through(settings: Settings, gate: Gate) -> None:
    async with open_line(settings, gate.pipeline(priorities=True)) as line:
        await until(lambda: line.has_stream("pack"))
        await line.submit(1, priority=Priority.LOW)
        (low,) = await line.submit(1, priority=Priority.LOW)
        await register(line.road, "stage", stages="{travel.pack}")
        queued = await in_state(line, low, State.QUEUED)

    assert queued.sentence == "pack is in its stream behind 1 other, for 1 worker"


# Over HTTP


async def test_it_is_asked_over_http(door: Door) -> None:
    task_id = await door.road.accept()

    answer = await door.client.get(f"/v1/tasks/{task_id}/explain")

    assert answer.status_code == 200
    body = answer.json()
    assert (body["task_id"], body["pipeline"], body["status"]) == (str(task_id), "travel", "pending")
    first, *others = body["reasons"]
    assert body["headline"] == first["sentence"]
    assert (first["stage"], first["state"], first["until"], first["by"]) == ("pack", "unpublished", None, None)
    assert datetime.fromisoformat(first["since"])
    assert {reason["state"] for reason in others} == {"blocked"}
    problem(await door.client.get(f"/v1/tasks/{uuid4()}/explain"), 404, "not-found")


async def test_a_key_for_other_pipelines_is_told_nothing(door: Door) -> None:
    task_id = await door.road.accept()
    header = await door.key("read", pipelines=["voyage"])

    problem(await door.client.get(f"/v1/tasks/{task_id}/explain", headers=header), 404, "not-found")
