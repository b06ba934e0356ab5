"""The door under load: too many open tasks, or events that nobody publishes, and that it opens again."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from postroad import Settings
from postroad.core import broker
from postroad.core.broker import Keys
from postroad.core.servers import Valkey
from postroad.intake.pressure import Pressure
from postroad.intake.problems import QUOTA_EXCEEDED, REDUCED_CAPACITY
from postroad.outbox.marker import Marker
from postroad.testing.traffic import Traffic, until
from tests.integration.door import Door, line, open_door, problem
from tests.integration.road import Road, die, pipeline

OTHER = pipeline("other", begin=())


@asynccontextmanager
async def open_watched(settings: Settings, road: Road) -> AsyncIterator[Door]:
    async with open_door(settings) as client:
        yield Door(client, road)


def full(answer: httpx2.Response) -> None:
    """Check that this is the answer of a door to a pipeline with too much to do."""
    body = problem(answer, 429)
    assert body["type"] == QUOTA_EXCEEDED
    assert body["violated-policies"] == ["open-tasks"]
    assert 5 <= int(answer.headers["retry-after"]) <= 10


async def status(door: Door, **members: Any) -> int:
    return (await door.submit(**members)).status_code


@pytest.fixture
async def watch(road: Road) -> AsyncIterator[Callable[..., Pressure]]:
    """Makes watchers of the road, of other processes as it were; the options are settings."""
    made = []

    def make(**options: Any) -> Pressure:
        made.append(Pressure(replace(road.settings, **options), road.engine))
        return made[-1]

    yield make
    for one in made:
        await one.aclose()


# Open tasks


async def test_a_pipeline_with_too_many_open_tasks_takes_no_more_and_others_do(settings: Settings, road: Road) -> None:
    await road.deploy(OTHER)
    async with open_watched(replace(settings, open_tasks_limit=3), road) as door:
        accepted = [await status(door) for _ in range(3)]
        answer = await door.submit()
        other = await door.submit(pipeline="other")

    assert accepted == [202] * 3
    full(answer)
    assert "travel" in answer.json()["detail"]
    assert other.status_code == 202


async def test_it_takes_some_again_when_well_below_the_limit(road: Road, watch: Callable[..., Pressure]) -> None:
    tasks = [await road.accept() for _ in range(10)]
    watched = watch(open_tasks_limit=10)

    shut = []
    for task_id in (None, *tasks[:2]):
        if task_id:
            await road.complete(task_id)
        await watched.sample()
        shut.append(watched.problem("travel") is not None)

    assert shut == [True, True, False], "9 of 10 are not less than 90 %"


async def test_tasks_that_have_come_to_an_end_or_wait_for_people_do_not_count(
    road: Road, watch: Callable[..., Pressure]
) -> None:
    await road.complete(await road.accept())
    await die(road, "ride")
    await road.accept()
    watched = watch(open_tasks_limit=2)

    await watched.sample()
    assert watched.problem("travel") is None
    await road.accept()
    await watched.sample()
    assert watched.problem("travel") is not None


async def test_replays_and_refusals_do_not_count(settings: Settings, road: Road) -> None:
    async with open_watched(replace(settings, open_tasks_limit=3), road) as door:
        for _ in range(5):
            assert (await door.submit(key="one")).status_code == 202
            assert await status(door, pipeline="nowhere") == 422
        assert [await status(door) for _ in range(3)] == [202, 202, 429]


async def test_the_lines_of_a_batch_are_let_in_up_to_the_limit(settings: Settings, road: Road) -> None:
    await road.deploy(OTHER)
    lines = [line() for _ in range(5)] + [line(pipeline="other")]
    async with open_watched(replace(settings, open_tasks_limit=3), road) as door:
        told = await door.batch(lines)

    assert [one["status"] for one in told] == [202, 202, 202, 429, 429, 202]
    assert told[3]["violated-policies"] == ["open-tasks"]


async def test_what_is_accepted_between_two_samples_is_counted_once(road: Road, watch: Callable[..., Pressure]) -> None:
    watched = watch(open_tasks_limit=100)
    for count in range(1, 4):
        await road.accept()
        watched.note_accepted(["travel"])
        assert watched._open.get("travel", 0) + watched._since["travel"] == count
        if count == 2:
            await watched.sample()
            assert watched._open == {"travel": 2}


async def test_counting_ends_at_the_limit_and_leans_on_the_index(road: Road, watch: Callable[..., Pressure]) -> None:
    await road.ask(
        "insert into postroad.task (task_id, pipeline, payload, trace_id, traceparent, status, finished_at)"
        " select gen_random_uuid(), 'travel', '1', '', '', case when n > 300 then 'completed' else 'pending' end,"
        " case when n > 300 then now() end from generate_series(1, 20000) as n"
    )
    await road.ask("analyze postroad.task")
    watched = watch(open_tasks_limit=100)
    parameters = {"tick": None, "is_part": False, "limit": 100}

    async with road.engine.connect() as connection:
        plan = await connection.exec_driver_sql(
            f"explain (analyze, format json) {watched._sql['pressure']}", parameters
        )
        told = json.dumps(plan.scalar_one())
    await watched.sample()

    assert "task_unfinished" in told
    assert "Seq Scan on task" not in told
    assert watched._open == {"travel": 100}


async def test_with_a_limit_of_0_nothing_is_counted(road: Road, watch: Callable[..., Pressure]) -> None:
    await road.accept()
    watched = watch(open_tasks_limit=0, outbox_age_limit=timedelta())

    await watched.sample()

    assert watched.problem("travel") is None
    assert watched._open == {"travel": 0}


# The age of the outbox


def old(answer: httpx2.Response) -> None:
    """Check that this is the answer of a door before an outbox that nobody publishes."""
    body = problem(answer, 503)
    assert body["type"] == REDUCED_CAPACITY
    assert body["violated-policies"] == ["outbox-age"]
    assert 5 <= int(answer.headers["retry-after"]) <= 10


async def test_without_a_relay_the_door_closes_and_with_one_it_opens(settings: Settings, road: Road) -> None:
    settings = replace(settings, outbox_age_limit=timedelta(milliseconds=700))
    async with open_watched(settings, road) as door:
        assert await status(door) == 202

        async def is_closed() -> bool:
            return await status(door) == 503

        await until(is_closed)
        old(await door.submit())
        (told,) = await door.batch([line()])
        assert (told["status"], told["violated-policies"]) == (503, ["outbox-age"])

        traffic = Traffic(settings)
        traffic.relay()
        try:

            async def is_open() -> bool:
                return await status(door) == 202

            await until(is_open)
        finally:
            await traffic.close()


class Outbox:
    """Ticks that a relay has made, and how far it says that it has published."""

    def __init__(self, road: Road, settings: Settings) -> None:
        self._road = road
        self._settings = settings
        self.keys = Keys(settings.prefix, settings.shards)
        self.client = broker.command_client(settings)
        self._watchers: list[Pressure] = []

    async def tick(self, ago: float) -> int:
        """Make a tick so many seconds ago; its number."""
        statement = (
            "insert into postroad.tick (tick, snapshot, system_identifier, made_at)"
            " select max(tick) + 1, pg_current_snapshot(), min(system_identifier), now() - :ago * interval '1 second'"
            " from postroad.tick returning tick"
        )
        ((number,),) = await self._road.ask(statement, ago=ago)
        return int(number)

    async def publish(self, tick: int, position: int | None = None, shard: int = 0) -> None:
        """Say that the outbox was published up to there."""
        await self.client.set(self.keys.marker(shard), str(Marker(tick, position)))

    def watch(self) -> Pressure:
        """A process that closes after a minute."""
        settings = replace(self._settings, outbox_age_limit=timedelta(minutes=1))
        self._watchers.append(Pressure(settings, self._road.engine))
        return self._watchers[-1]

    async def aclose(self) -> None:
        """Close the connections to Redis."""
        for one in self._watchers:
            await one.aclose()
        await self.client.aclose()


async def is_shut(watched: Pressure) -> bool:
    """Whether it is, after it has looked as often as it needs to be sure."""
    for _ in range(2):
        await watched.sample()
    return watched.problem("travel") is not None


@pytest.fixture
async def outbox(settings: Settings, road: Road) -> AsyncIterator[Outbox]:
    made = Outbox(road, replace(settings, shards=2))
    yield made
    await made.aclose()


async def test_what_is_published_is_not_old_however_long_ago_it_was(outbox: Outbox) -> None:
    last = await outbox.tick(ago=3600)
    for shard in (0, 1):
        await outbox.publish(last, shard=shard)

    assert not await is_shut(outbox.watch())


@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize(("ago", "position", "shut"), [(70, None, True), (40, None, False), (3600, 5, True)])
async def test_the_first_window_that_a_shard_has_not_published_is_what_counts(
    outbox: Outbox, behind: int, ago: float, position: int | None, shut: bool
) -> None:
    first = await outbox.tick(ago=3600)
    following = await outbox.tick(ago=ago)
    await outbox.publish(first, position, shard=behind)
    await outbox.publish(following, shard=1 - behind)
    watched = outbox.watch()

    assert await is_shut(watched) is shut
    await outbox.publish(following, shard=behind)
    assert not await is_shut(watched)


async def test_the_door_opens_only_when_the_age_is_well_below_the_limit(outbox: Outbox) -> None:
    first, second, third, fourth = [await outbox.tick(ago=ago) for ago in (3600, 70, 57, 40)]
    watched = outbox.watch()
    await outbox.publish(fourth, shard=1)

    await outbox.publish(first)
    assert await is_shut(watched)
    await outbox.publish(second)
    assert await is_shut(watched)
    await outbox.publish(third)
    assert not await is_shut(watched)


async def test_one_transaction_that_was_open_for_long_does_not_close_the_door(outbox: Outbox, road: Road) -> None:
    last = await outbox.tick(ago=3600)
    for shard in (0, 1):
        await outbox.publish(last, shard=shard)
    watched = outbox.watch()
    await road.ask(
        "insert into postroad.outbox (task_id, pipeline, type, occurred_at)"
        " values (gen_random_uuid(), 'travel', 'Late', now() - interval '5 minutes')"
    )

    await watched.sample()

    assert watched.problem("travel") is None
    await watched.sample()
    assert watched.problem("travel") is not None


async def test_while_redis_is_away_the_age_is_counted_from_what_it_said_last(
    settings: Settings, road: Road, own_valkey: Valkey
) -> None:
    outbox = Outbox(road, replace(settings, redis_url=own_valkey.url))
    await outbox.publish(await outbox.tick(ago=3600))
    watched = outbox.watch()
    assert not await is_shut(watched)

    await outbox.client.aclose()
    await asyncio.to_thread(own_valkey.stop)
    late = outbox.watch()
    assert not await is_shut(late)
    await outbox.tick(ago=45)
    assert not await is_shut(watched)
    await road.ask("update postroad.tick set made_at = made_at - interval '20 seconds'")

    assert await is_shut(watched)
    # One that began meanwhile counts from then on.
    assert await is_shut(late)
    assert not await is_shut(outbox.watch())
    await outbox.aclose()
