"""The sweep: single entries that are lost are asked for again, and nothing else is."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from postroad import Settings
from postroad.core import broker
from postroad.core.broker import RETRY_CONSUMER, Keys, group_name
from postroad.core.database import connect_psycopg
from postroad.core.outcome import Retry
from postroad.relay.relay import Relay
from postroad.relay.sweep import Sweep
from postroad.testing.traffic import until
from tests.integration.road import TRAVEL, Road, open_road

MARGIN = timedelta(milliseconds=200)


class Yard:
    """A road with a relay and no workers: the test is the consumer of the first stage."""

    def __init__(self, road: Road) -> None:
        self.road = road
        self.clients = broker.Clients(road.settings)
        self.client: Any = self.clients.of(0)
        self.stream = Keys(road.settings.prefix).stream("travel", "pack")
        self.group = group_name("travel", "pack")

    async def accept(self, count: int) -> list[UUID]:
        """Accept tasks, and wait until their entries are in the stream."""
        before = await self.length()
        tasks = [await self.road.accept() for _ in range(count)]
        await until(lambda: self._has(before + count))
        return tasks

    async def length(self) -> int:
        return int(await self.client.xlen(self.stream))

    async def _has(self, count: int) -> bool:
        return await self.length() >= count

    async def read(self, consumer: str, count: int) -> dict[UUID, str]:
        """Let ``consumer`` read; the id of the entry of each task."""
        answer = await self.client.xreadgroup(self.group, consumer, {self.stream: ">"}, count=count)
        return {UUID(fields["task"]): entry for entries in answer.values() for entry, fields in entries}

    async def sweep(self) -> int:
        """One round, once everything that there is has been ready for longer than the margin."""
        await asyncio.sleep(MARGIN.total_seconds() + 0.05)
        async with await connect_psycopg(self.road.settings, application="sweep") as connection:
            return await Sweep(self.road.settings, self.clients, margin=MARGIN).round(connection)

    async def asked(self) -> set[UUID]:
        """The tasks whose first stage the sweep asked for."""
        rows = await self.road.ask(
            "select task_id from postroad.outbox where type = 'StageRequested' and data->>'reason' = 'sweep'"
        )
        return {row[0] for row in rows}


@pytest.fixture
async def yard(settings: Settings) -> AsyncIterator[Yard]:
    async with open_road(settings, TRAVEL) as road:
        made = Yard(road)
        relaying = asyncio.create_task(Relay(settings).run())
        try:
            await until(lambda: _exists(made))
            yield made
        finally:
            relaying.cancel()
            await asyncio.gather(relaying, return_exceptions=True)
            await made.client.aclose()


async def _exists(yard: Yard) -> bool:
    return bool(await yard.client.exists(yard.stream))


async def test_entries_that_wait_or_are_pending_or_parked_are_not_lost(yard: Yard) -> None:
    tasks = await yard.accept(6)
    entries = await yard.read("worker", 3)
    await yard.client.xclaim(yard.stream, yard.group, RETRY_CONSUMER, 0, [entries[tasks[0]]], justid=True)

    assert await yard.sweep() == 0
    assert await yard.asked() == set()


async def test_an_entry_that_was_deleted_before_it_was_delivered_is_asked_for_again(yard: Yard) -> None:
    tasks = await yard.accept(5)
    entries = [entry for entry, _ in await yard.client.xrange(yard.stream)]
    await yard.client.xdel(yard.stream, entries[1], entries[3])
    await yard.read("worker", 10)

    assert await yard.sweep() == 2
    assert await yard.asked() == {tasks[1], tasks[3]}


async def test_a_pending_entry_whose_body_was_deleted_is_asked_for_again(yard: Yard) -> None:
    tasks = await yard.accept(3)
    entries = await yard.read("worker", 10)
    await yard.client.xdel(yard.stream, entries[tasks[1]])

    assert await yard.sweep() == 1
    assert await yard.asked() == {tasks[1]}


async def test_the_entries_of_a_consumer_that_was_removed_are_asked_for_again(yard: Yard) -> None:
    tasks = await yard.accept(4)
    doomed = await yard.read("doomed", 2)
    await yard.read("worker", 10)
    await yard.client.xgroup_delconsumer(yard.stream, yard.group, "doomed")

    assert await yard.sweep() == 2
    assert await yard.asked() == set(doomed)
    assert set(doomed) <= set(tasks)


async def test_a_retry_that_is_due_in_postgres_does_not_wait_for_the_clock_of_redis(yard: Yard) -> None:
    due, later, running = await yard.accept(3)
    entries = await yard.read("worker", 3)
    await yard.road.commit(due, "pack", Retry("no horse", after=0.001))
    await yard.road.commit(later, "pack", Retry("no horse", after=3600))
    await yard.road.commit(running, "pack", Retry("no horse", after=0.001))
    # As they were parked, before the clock of Redis went back by ten minutes.
    keys = Keys(yard.road.settings.prefix).due("travel", "pack")
    far = 1000 * (int((await yard.client.time())[0]) + 600)
    await yard.client.zadd(keys, {entries[due]: far, entries[later]: far})
    await yard.client.xclaim(yard.stream, yard.group, RETRY_CONSUMER, 0, [entries[due], entries[later]], justid=True)

    assert await yard.sweep() == 0

    scores = dict(await yard.client.zrange(keys, 0, -1, withscores=True))
    assert scores.keys() == {entries[due], entries[later]}
    assert scores[entries[later]] == far
    assert scores[entries[due]] < far - 300_000
    assert await yard.asked() == set()


async def test_what_is_asked_for_arrives_and_is_not_asked_for_again(yard: Yard) -> None:
    (task,) = await yard.accept(1)
    await yard.client.xtrim(yard.stream, maxlen=0)
    await yard.sweep()
    await until(lambda: yard._has(1))

    assert await yard.read("worker", 10) == {task: (await yard.client.xrange(yard.stream))[0][0]}
    assert await yard.sweep() == 0


async def test_a_retry_that_is_not_due_is_not_missed(yard: Yard) -> None:
    (task,) = await yard.accept(1)
    entries = await yard.read("worker", 1)
    await yard.road.commit(task, "pack", Retry("later", after=3600))
    await yard.client.xack(yard.stream, yard.group, *entries.values())
    await yard.client.xdel(yard.stream, *entries.values())

    assert await yard.sweep() == 0


async def test_a_retry_that_is_due_and_whose_entry_is_gone_is_asked_for_again(yard: Yard) -> None:
    (task,) = await yard.accept(1)
    entries = await yard.read("worker", 1)
    await yard.road.commit(task, "pack", Retry("at once", after=0))
    await yard.client.xack(yard.stream, yard.group, *entries.values())

    assert await yard.sweep() == 1
    assert await yard.asked() == {task}


async def test_a_long_backlog_behind_the_last_delivery_is_not_loss(yard: Yard) -> None:
    lost = (await yard.accept(1))[0]
    await yard.client.xtrim(yard.stream, maxlen=0)
    await yard.accept(1)
    await yard.read("worker", 1)
    await asyncio.sleep(MARGIN.total_seconds() + 0.05)
    await yard.accept(20)

    assert await yard.sweep() == 1
    assert await yard.asked() == {lost}


async def test_a_dead_stage_and_a_paused_one_are_left_alone(yard: Yard) -> None:
    tasks = await yard.accept(2)
    await yard.client.xtrim(yard.stream, maxlen=0)
    await yard.road.ask("update postroad.stage set paused = true where stage = 'pack'")

    assert await yard.sweep() == 0

    await yard.road.ask("update postroad.stage set paused = false where stage = 'pack'")
    assert await yard.sweep() == len(tasks)
