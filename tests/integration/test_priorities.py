"""Priorities over the whole road: the urgent overtake, nobody starves, and nothing is lost in any lane."""

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import postroad
from postroad import Pipeline, Retry, Settings, Task
from postroad.core import broker
from postroad.core.broker import group_name
from postroad.core.database import connect_psycopg
from postroad.core.priority import Priority
from postroad.core.servers import Valkey
from postroad.relay.sweep import Sweep
from postroad.stages.turns import WEIGHTS
from postroad.testing.traffic import until
from tests.integration.line import Line, open_line

HIGH, NORMAL, LOW = Priority
SHORT_LEASE = timedelta(seconds=1)


class Ride:
    """A handler that notes whose turn it was, and that can be held up: ``let`` says how many more may begin."""

    def __init__(self, *, let: int | None = None) -> None:
        self.order: list[Priority] = []
        self.let = let
        self._more = asyncio.Event()

    async def __call__(self, task: Task) -> None:
        while self.let is not None and len(self.order) >= self.let:
            self._more.clear()
            await self._more.wait()
        self.order.append(Priority(task.payload))

    def go_on(self, count: int | None = None) -> None:
        """So many more may begin; all, by default."""
        self.let = None if count is None else (self.let or 0) + count
        self._more.set()

    async def have_begun(self, count: int) -> None:
        await until(lambda: self._have_begun(count))

    async def _have_begun(self, count: int) -> bool:
        return len(self.order) >= count


def road(handler: Callable[..., Any], *stages: str, priorities: bool = True, **options: Any) -> Pipeline:
    """A pipeline of ``stages`` one after the other, ``ride`` by default, all with one handler."""
    made = Pipeline("road", priorities=priorities)
    before: tuple[str, ...] = ()
    for stage in stages or ("ride",):

        @made.stage(stage, after=before, **options)
        async def handle(task: Task) -> None:
            await handler(task)

        before = (stage,)
    return made


async def submit(line: Line, count: int, *lanes: Priority) -> dict[Priority, list[UUID]]:
    """Accept ``count`` tasks of each of ``lanes``, by default of all, whose payloads say which."""
    return {lane: await line.submit(*[int(lane)] * count, priority=lane) for lane in lanes or Priority}


async def lengths(line: Line, stage: str = "ride") -> list[int]:
    """How many entries there are in the lanes of a stage."""
    return [int(await line.client.xlen(line.stream(stage, lane))) for lane in Priority]


async def have_arrived(line: Line, *wanted: int, stage: str = "ride") -> None:
    """Wait until the lanes of a stage hold so many entries."""

    async def are_there() -> bool:
        return await lengths(line, stage) == list(wanted)

    await until(are_there)


async def read(line: Line, lane: Priority, consumer: str, count: int) -> dict[UUID, str]:
    """Let ``consumer`` read of a lane; the id of the entry of each task."""
    answer: Any = await line.client.xreadgroup(
        group_name("road", "ride"), consumer, {line.stream("ride", lane): ">"}, count=count
    )
    return {UUID(fields["task"]): entry for entries in answer.values() for entry, fields in entries}


async def are_done_once(line: Line, count: int) -> None:
    """Wait until ``count`` tasks have completed; each stage of each was completed once."""
    assert await line.are_finished() == {"completed": count}
    counted = await line.road.ask("select count(*) from postroad.outbox where type = 'StageCompleted'")
    assert counted == [(count * len(line.pipeline.graph()),)]
    assert await line.violated() == {}


@contextlib.asynccontextmanager
async def open_lanes(settings: Settings, pipeline: Pipeline) -> AsyncIterator[Line]:
    """A line whose relay has created every lane: what is submitted from now on is published once."""
    async with open_line(settings, pipeline) as line:
        streams = [line.stream(stage, lane) for stage in pipeline.graph() for lane in Priority]

        async def are_there() -> bool:
            return int(await line.client.exists(*streams, line.keys.marker(0))) == len(streams) + 1

        await until(are_there)
        yield line


@contextlib.asynccontextmanager
async def backlog(settings: Settings, pipeline: Pipeline, counts: dict[Priority, int]) -> AsyncIterator[Line]:
    """A line with so many tasks of each priority in its streams, and no worker yet."""
    async with open_lanes(settings, pipeline) as line:
        for lane, count in counts.items():
            await submit(line, count, lane)
        await have_arrived(line, *(counts.get(lane, 0) for lane in Priority))
        yield line


# Their turn


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_the_urgent_overtake_a_backlog(settings: Settings, concurrency: int) -> None:
    ride = Ride(let=20)
    pipeline = road(ride, concurrency=concurrency)
    async with backlog(settings, pipeline, {NORMAL: 150, LOW: 150}) as line:
        line.work()
        await ride.have_begun(20)

        await submit(line, 10, HIGH)
        await until(lambda: have(line, HIGH, 10))
        ride.go_on()

        await are_done_once(line, 310)
        # Behind what was in hand, and beside the few that the weights let through.
        places = [place for place, lane in enumerate(ride.order) if lane is HIGH]
        assert places[-1] < 20 + concurrency + 10 * 12 / 8 + concurrency


async def have(line: Line, lane: Priority, count: int) -> bool:
    return int(await line.client.xlen(line.stream("ride", lane))) >= count


@pytest.mark.parametrize("concurrency", [1, 10])
async def test_under_a_flood_each_has_its_weight(settings: Settings, concurrency: int) -> None:
    ride = Ride()
    pipeline = road(ride, concurrency=concurrency)
    async with backlog(settings, pipeline, {HIGH: 100, NORMAL: 50, LOW: 50}) as line:
        line.work()
        await are_done_once(line, 200)

    # All three had a backlog for so long; by count, not by time.
    for place in range(120):
        counts = Counter(ride.order[:place])
        for lane, weight in WEIGHTS.items():
            assert abs(counts[lane] - place * weight / 12) <= 4


async def test_low_ones_are_not_starved_by_a_flood_that_never_ends(settings: Settings) -> None:
    ride = Ride()
    async with backlog(settings, road(ride, concurrency=4), {HIGH: 40, LOW: 12}) as line:
        flooding = True

        async def flood() -> int:
            """Keep the high lane full for as long as there is a low one; how many that took."""
            count = 40
            while flooding:
                if await lengths(line) < [30]:
                    await submit(line, 30, HIGH)
                    count += 30
                await asyncio.sleep(0.01)
            return count

        floods = asyncio.create_task(flood())
        await until(lambda: have(line, HIGH, 40))
        line.work()
        await until(lambda: _has(ride, LOW, 12))
        flooding = False
        await are_done_once(line, await floods + 12)

    last = max(place for place, lane in enumerate(ride.order) if lane is LOW)
    assert last <= 12 * 9 + 8


async def _has(ride: Ride, lane: Priority, count: int) -> bool:
    return ride.order.count(lane) >= count


async def test_a_task_keeps_its_priority_on_its_way_and_in_its_retries(settings: Settings) -> None:
    seen: list[tuple[Priority, str]] = []
    gate = asyncio.Event()

    async def handle(task: Task) -> None:
        if task.stage == "ride" and task.attempt == 1:
            raise Retry("no horse", after=0.4)
        if task.stage == "arrive":
            await gate.wait()
        seen.append((Priority(task.payload), task.stage))

    pipeline = Pipeline("road", priorities=True)
    for stage, after in {"ride": (), "walk": (), "arrive": ("ride", "walk")}.items():
        pipeline.stage(stage, after=after)(handle)
    async with open_lanes(settings, pipeline) as line:
        line.work("ride", "walk")
        await submit(line, 2)
        dues = [line.keys.due("road", "ride", lane.lane) for lane in Priority]

        async def are_parked() -> bool:
            return [int(await line.client.zcard(due)) for due in dues] == [2, 2, 2]

        await until(are_parked)
        await have_arrived(line, 2, 2, 2, stage="arrive")  # asked for by the one that was done last

        gate.set()
        line.work("arrive")
        await are_done_once(line, 6)
        assert Counter(seen) == {(lane, stage): 2 for lane in Priority for stage in pipeline.graph()}


# Limits


async def test_a_rate_is_spent_on_the_urgent_first_and_not_on_empty_lanes(settings: Settings) -> None:
    ride = Ride()
    async with open_lanes(settings, road(ride, rate="1/h", burst=9)) as line:
        worker = line.work()
        await until(lambda: _is_waiting(worker))

        await submit(line, 3, LOW)
        await ride.have_begun(3)
        # Gone, so that what follows is there when the next looks.
        await line.stop(worker)
        await submit(line, 6)
        await have_arrived(line, 6, 6, 6)
        line.work()
        await ride.have_begun(9)

        assert ride.order[:3] == [LOW] * 3
        assert Counter(ride.order[3:]) == {HIGH: 5, NORMAL: 1}
        await until(lambda: _is_pending_nowhere(line))  # nothing waits in a worker for a token
        await have_arrived(line, 1, 5, 6)


async def _is_pending_nowhere(line: Line) -> bool:
    pending: list[Any] = [await line.client.xpending(line.stream("ride", lane), "road.ride") for lane in Priority]
    return not any(one["pending"] for one in pending)


async def _is_waiting(worker: Any) -> bool:
    inbox = worker._consumers[0]._inbox
    return inbox.are_open and inbox._normal._reader_id is not None


# Faults


async def test_what_a_dead_worker_held_of_each_lane_is_taken_over(settings: Settings) -> None:
    ride = Ride(let=0)
    async with open_lanes(settings, road(ride, concurrency=24)) as line:
        dying = line.work()
        await submit(line, 4)
        consumer = dying._consumers[0]
        await until(lambda: _holds(consumer, 12))

        await line.kill(dying)
        assert await lengths(line) == [4, 4, 4]
        ride.go_on()
        line.work(lease=SHORT_LEASE)

        await are_done_once(line, 12)
        assert Counter(ride.order) == {HIGH: 4, NORMAL: 4, LOW: 4}
        await until(lambda: _are_empty(line))


async def test_a_redis_that_is_wiped_loses_nothing_of_any_lane(settings: Settings) -> None:
    ride = Ride(let=6)
    async with open_lanes(settings, road(ride, "ride", "rest", concurrency=5)) as line:
        line.work(lease=SHORT_LEASE)
        await submit(line, 10)
        await ride.have_begun(6)

        keys = [key async for key in line.client.scan_iter(f"{settings.prefix}:*")]
        await line.client.delete(*keys)
        ride.go_on()

        await are_done_once(line, 30)


async def _holds(consumer: Any, count: int) -> bool:
    return len(consumer.running) == count


async def test_what_a_stopped_worker_holds_of_each_lane_is_handed_back_into_it(settings: Settings) -> None:
    ride = Ride(let=0)
    async with open_lanes(settings, road(ride, concurrency=24)) as line:
        stopped = line.work(grace=timedelta())
        await submit(line, 2)
        consumer = stopped._consumers[0]
        await until(lambda: _holds(consumer, 6))

        await line.stop(stopped)
        dues = [line.keys.due("road", "ride", lane.lane) for lane in Priority]
        assert [await line.client.zcard(due) for due in dues] == [2, 2, 2]
        ride.go_on()
        line.work()

        await are_done_once(line, 6)
        assert await line.road.ask("select distinct attempts from postroad.stage_run") == [(1,)]


async def test_a_lane_that_is_gone_is_restored_and_only_its_tasks_asked_for(settings: Settings) -> None:
    async with open_lanes(settings, road(Ride())) as line:
        tasks = await submit(line, 2)
        await have_arrived(line, 2, 2, 2)

        for count, gone in enumerate(Priority, start=1):
            await line.client.delete(line.stream("ride", gone))
            await have_arrived(line, 2, 2, 2)
            asked = await line.road.ask(
                "select task_id from postroad.outbox where data->>'reason' = 'no stream' order by position desc limit 2"
            )
            assert {task_id for (task_id,) in asked} == set(tasks[gone])
            assert await line.road.ask("select count(*) from postroad.outbox") == [(6 + 2 * count,)]


async def test_a_shard_that_lost_its_marker_is_asked_for_tasks_of_each_lane(settings: Settings) -> None:
    async with open_lanes(settings, road(Ride())) as line:
        await submit(line, 2)
        await have_arrived(line, 2, 2, 2)

        await line.client.delete(line.keys.marker(0))

        await have_arrived(line, 4, 4, 4)
        line.work()
        await are_done_once(line, 6)


async def test_an_entry_that_is_deleted_from_a_lane_is_asked_for_again(settings: Settings) -> None:
    margin = timedelta(milliseconds=100)
    clients = broker.Clients(settings)

    async def sweep() -> int:
        await asyncio.sleep(margin.total_seconds() + 0.05)
        async with await connect_psycopg(settings, application="sweep") as connection:
            return await Sweep(settings, clients, margin=margin).round(connection)

    async with open_lanes(settings, road(Ride())) as line:
        tasks = await submit(line, 3)
        await have_arrived(line, 3, 3, 3)
        for lost_in in Priority:
            entries: Any = await line.client.xrange(line.stream("ride", lost_in))
            await line.client.xdel(line.stream("ride", lost_in), entries[1][0])
            # What waits in the other lanes, for however long, does not hide it, nor is it taken for lost.
            await read(line, lost_in, "worker", 10)

            assert await sweep() == 1
            asked = await line.road.ask(
                "select task_id from postroad.outbox where data->>'reason' = 'sweep' order by position desc limit 1"
            )
            assert asked == [(UUID(entries[1][1]["task"]),)]
            assert asked[0][0] in tasks[lost_in]
            await have_arrived(line, 3, 3, 3)
            await read(line, lost_in, "worker", 10)
        assert await sweep() == 0
        await clients.aclose()


# Changing one's mind


async def test_tasks_on_their_way_pass_when_priorities_come_and_go(settings: Settings) -> None:
    ride = Ride(let=3)
    failed: set[str] = set()

    async def handle(task: Task) -> None:
        if str(task.task_id) not in failed:
            failed.add(str(task.task_id))
            raise Retry("once", after=0.2)
        await ride(task)

    without, with_them = (road(handle, "ride", "rest", priorities=are_on, concurrency=6) for are_on in (False, True))
    async with open_line(settings, without) as line:
        worker = line.work(lease=SHORT_LEASE)
        before = await submit(line, 12, NORMAL)
        await ride.have_begun(3)

        await line.road.deploy(with_them)
        await until(lambda: _is_open(worker, True))
        await submit(line, 8)
        await until(lambda: have(line, HIGH, 1))
        ride.go_on(4)
        await ride.have_begun(7)

        await line.road.deploy(without)
        await until(lambda: _is_open(worker, False))
        await submit(line, 5, NORMAL)
        ride.go_on()

        await are_done_once(line, len(before[NORMAL]) + 24 + 5)
        # What the lanes still hold has been done by way of the normal one; should they be read again, it goes.
        await line.road.deploy(with_them)
        await until(lambda: _are_empty(line))


async def _is_open(worker: Any, is_open: bool) -> bool:
    return all(consumer._inbox.are_open is is_open for consumer in worker._consumers)


async def _are_empty(line: Line) -> bool:
    return [await lengths(line, stage) for stage in line.pipeline.graph()] == [[0, 0, 0]] * len(line.pipeline.graph())


async def test_a_pipeline_without_priorities_costs_redis_nothing_more(own_valkey: Valkey, settings: Settings) -> None:
    """Every command that its relay and its worker send names the keys, and the scripts, of one stream a stage."""

    async def handle(task: Task) -> None:
        if task.payload == 0 and task.attempt == 1:
            raise Retry("once", after=0.05)

    scripts = {
        hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest(): file.stem
        for folder in ("stages", "relay")
        for file in Path(postroad.__file__).parent.glob(f"{folder}/lua/*.lua")
    }
    sent: set[tuple[str, ...]] = set()
    settings = replace(settings, redis_url=own_valkey.url, lease=SHORT_LEASE)
    async with open_line(settings, road(handle, priorities=False)) as line, line.client.monitor() as monitor:

        async def listen() -> None:
            async for command in monitor.listen():
                name, *arguments = command["command"].split()
                if command["client_type"] == "lua" or name.upper() in ("HELLO", "CLIENT", "SCRIPT", "EVAL"):
                    continue
                named = [scripts[arguments[0]]] if name.upper() == "EVALSHA" else []
                keys = [one.removeprefix(f"{settings.prefix}:{{0}}:") for one in arguments if settings.prefix in one]
                sent.add((name.lower(), *named, *(key for key in keys if not key.startswith("alive:"))))

        listening = asyncio.create_task(listen())
        line.work()
        await line.submit(*range(20))
        assert await line.are_finished() == {"completed": 20}
        for expected in ("relist", "trim"):
            await until(lambda expected=expected: _has_run(sent, expected))  # type: ignore[misc]  # bound at once
        listening.cancel()
        await asyncio.wait([listening])

    stream, due = "road.ride:stream", "road.ride:due"
    assert sent <= {
        ("evalsha", "inspect", "marker", stream),
        ("evalsha", "publish", "marker", stream),
        ("evalsha", "publish", "marker"),
        ("evalsha", "set_marker", "marker"),
        ("evalsha", "inspect", "marker"),
        ("evalsha", "horizon", stream),
        ("evalsha", "pending", stream),
        ("get", "marker"),
        ("setrange", "marker"),
        ("xgroup", stream),
        ("xreadgroup", stream),
        ("xack", stream),
        ("xdel", stream),
        ("xinfo", stream),
        ("set",),
        ("getex",),
        ("del",),
        ("evalsha", "alive"),
        ("evalsha", "park", stream, due),
        ("evalsha", "reclaim", stream),
        ("evalsha", "reclaim_due", stream, due),
        ("evalsha", "relist", stream, due),
        ("evalsha", "trim", stream),
        ("evalsha", "leave", stream),
        ("exists", stream),
    }


async def _has_run(sent: set[tuple[str, ...]], script: str) -> bool:
    return any(script in command for command in sent)
