"""The limits of a stage on a real server: no more than they say, over all processes, and not much less."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest
from redis.asyncio import Redis

from postroad import Pipeline, Settings, Task
from postroad.core import broker
from postroad.core.broker import Keys
from postroad.core.pipeline import Stage
from postroad.core.rate import Rate
from postroad.core.servers import Valkey
from postroad.stages.throttle import Limits, Throttle
from postroad.testing.traffic import until
from tests.integration.line import open_line

HOUR = timedelta(hours=1)


class Toll:
    """One stage with limits, and the processes that share them."""

    def __init__(self, settings: Settings) -> None:
        self.keys = Keys(settings.prefix)
        self.client: Redis = broker.command_client(settings)

    async def process(self, name: str, limits: Limits) -> Throttle:
        """A process that lives."""
        await self.client.set(self.keys.alive(0, name), 1)
        throttle = Throttle(stage(), consumer=name, keys=self.keys, client=self.client)
        throttle.limits = limits
        return throttle


def stage(**options: object) -> Stage:
    """A stage of these limits."""
    travel = Pipeline("travel")

    @travel.stage(**options)  # type: ignore[arg-type]  # as the caller means them
    async def ride(task: Task) -> None: ...

    return travel.graph()["ride"]


@pytest.fixture
async def toll(settings: Settings) -> AsyncIterator[Toll]:
    made = Toll(settings)
    yield made
    await made.client.aclose()


def slowly(burst: int) -> Limits:
    """After the burst, one in an hour."""
    return Limits(Rate(1 / 3600, burst))


async def test_without_limits_all_is_granted_and_redis_is_not_asked(toll: Toll) -> None:
    one = await toll.process("one", Limits())

    assert not one.is_needed
    assert await one.take(1000, held=50) == (1000, 0.0)
    assert await toll.client.keys(toll.keys.limit("travel", "*")) == []


async def test_after_a_rest_a_burst_is_granted_and_then_one_after_the_other(toll: Toll) -> None:
    one, two = [await toll.process(name, slowly(10)) for name in ("one", "two")]

    assert (await one.take(6, held=0))[0] == 6
    assert (await two.take(6, held=0))[0] == 4
    granted, wait = await one.take(1, held=6)
    assert granted == 0
    assert 3590 < wait <= 3600


async def test_what_is_given_back_is_granted_again_but_never_more_than_a_burst(toll: Toll) -> None:
    one, two = [await toll.process(name, slowly(10)) for name in ("one", "two")]
    await one.take(10, held=0)

    await one.give_back(3, held=7)
    assert (await two.take(10, held=0))[0] == 3
    await two.give_back(3, held=0)
    await two.give_back(500, held=0)
    assert (await two.take(50, held=0))[0] == 10


async def test_in_any_time_no_more_than_the_rate_and_a_burst_are_granted(toll: Toll) -> None:
    limits = Limits(Rate(500.0, 50))
    processes = [await toll.process(f"process-{number}", limits) for number in range(4)]
    began = await microseconds(toll.client)
    granted = 0

    async def go(throttle: Throttle) -> None:
        nonlocal granted
        while granted < 700:
            count, wait = await throttle.take(7, held=0)
            granted += count
            if not count:
                await asyncio.sleep(wait)

    async def forget() -> None:
        while granted < 700:
            await toll.client.script_flush()
            await asyncio.sleep(0.1)

    await asyncio.gather(*map(go, processes), forget())

    seconds = (await microseconds(toll.client) - began) / 1e6
    assert granted <= 50 + 500 * seconds + 1


async def microseconds(client: Redis) -> int:
    """The clock of Redis."""
    seconds, rest = await client.time()
    return int(seconds) * 1_000_000 + int(rest)


async def test_a_limit_that_is_lowered_holds_at_once_and_makes_nobody_wait_for_the_old_one(toll: Toll) -> None:
    one = await toll.process("one", slowly(1000))
    await one.take(1000, held=0)

    one.limits = Limits(Rate(1000.0, 1))
    _, wait = await one.take(1, held=0)
    assert wait <= 0.01


async def test_a_clock_that_went_back_makes_nobody_wait_for_it(toll: Toll) -> None:
    one = await toll.process("one", Limits(Rate(1.0, 5)))
    await toll.client.set(toll.keys.limit("travel", "ride"), await microseconds(toll.client) + 600 * 10**6)

    granted, wait = await one.take(1, held=0)
    assert granted == 0
    assert wait <= 1


async def test_no_more_run_at_once_than_may_over_all_processes_that_live(toll: Toll) -> None:
    one, two = [await toll.process(name, Limits(max_running=5)) for name in ("one", "two")]

    assert (await one.take(3, held=0))[0] == 3
    assert (await two.take(9, held=0))[0] == 2
    assert (await one.take(9, held=3))[0] == 0
    await one.give_back(0, held=1)
    assert (await two.take(9, held=2))[0] == 2
    await toll.client.delete(toll.keys.alive(0, "two"))
    assert (await one.take(9, held=1))[0] == 4


async def test_a_redis_that_is_full_leaves_each_process_its_share(
    own_valkey: Valkey, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    toll = Toll(Settings(database_url=settings.database_url, redis_url=own_valkey.url))
    one = await toll.process("one", Limits(Rate(1 / 3600, 10), max_running=8))
    one.processes = 2
    await toll.client.config_set("maxmemory", 1)

    assert (await one.take(10, held=0))[0] == 4
    assert (await one.take(10, held=0))[0] == 1
    granted, wait = await one.take(10, held=0)
    assert granted == 0
    assert wait > 3600
    assert caplog.text.count("Redis is full") == 1

    await toll.client.config_set("maxmemory", 0)
    assert (await one.take(10, held=0))[0] == 8
    await toll.client.aclose()


def test_what_people_have_set_wins_over_the_code() -> None:
    coded = stage(rate="50/s", burst=7, max_running=3)

    def limits(rate: str | None = None, burst: int | None = None, max_running: int | None = None) -> Limits:
        return Limits.in_force(coded, rate=rate, burst=burst, max_running=max_running)

    assert limits() == Limits(Rate(50.0, 7), 3)
    assert limits(rate="10/s") == Limits(Rate(10.0, 1), 3)
    assert limits(burst=2, max_running=9) == Limits(Rate(50.0, 2), 9)
    assert limits(rate="off") == Limits(None, 3)
    assert Limits.in_force(stage(), rate=None, burst=4, max_running=None) == Limits()


# On the road


async def test_a_stage_with_limits_completes_all_and_keeps_to_them(settings: Settings) -> None:
    travel = Pipeline("travel")
    running, most, tried = 0, 0, 0

    @travel.stage(rate="100/s", burst=5, max_running=4)
    async def ride(task: Task) -> None:
        nonlocal running, most, tried
        running += 1
        most = max(most, running)
        tried += 1
        await asyncio.sleep(0.02)
        running -= 1
        if task.attempt == 1 and task.payload["n"] % 3 == 0:
            raise OSError("a stone")

    async with open_line(settings, travel) as line:
        for _ in range(3):
            line.work()
        await line.submit(*({"n": number} for number in range(30)))

        assert await line.are_finished() == {"completed": 30}

    assert tried == 40
    assert most <= 4


async def test_a_limit_is_changed_while_the_stage_works(settings: Settings) -> None:
    travel = Pipeline("travel")

    @travel.stage(rate="1/h")
    async def ride(task: Task) -> None: ...

    async with open_line(settings, travel) as line:
        line.work()
        await line.submit(*({} for _ in range(20)))

        async def has_begun() -> bool:
            return await line.road.ask("select from postroad.task where status = 'completed'") != []

        await until(has_begun)
        assert await line.road.ask("select count(*) from postroad.task where status = 'completed'") == [(1,)]
        await line.road.ask("update postroad.stage set rate = 'off'")
        assert await line.are_finished() == {"completed": 20}


async def test_what_a_dead_worker_held_is_taken_over_as_fast_as_the_limits_allow(settings: Settings) -> None:
    travel = Pipeline("travel")
    gate = asyncio.Event()

    @travel.stage(rate="500/s", burst=1)
    async def ride(task: Task) -> None:
        await gate.wait()

    # Of a look every quarter of a lease, with one entry each, it would take an hour.
    patient = replace(settings, lease=timedelta(minutes=8))
    async with open_line(patient, travel) as line:
        dying = line.work()
        await line.submit(*({} for _ in range(30)))

        async def has_all() -> bool:
            return len(dying._consumers[0].running) == 30

        await until(has_all)
        await line.kill(dying)
        gate.set()
        heir = line.work()
        heir._consumers[0]._fetcher._may_reclaim_at = 0
        assert await line.are_finished() == {"completed": 30}


async def test_an_idle_process_keeps_no_turn_from_another(settings: Settings) -> None:
    travel = Pipeline("travel")

    @travel.stage(rate="50/s", burst=1, max_running=1)
    async def ride(task: Task) -> int:
        return task.attempt

    async with open_line(settings, travel) as line:
        workers = [line.work() for _ in range(3)]
        for _ in range(5):
            await line.submit({}, {})
            await line.are_finished()
            await asyncio.sleep(0.05)
        await line.kill(workers[0])
        await line.submit({}, {})
        assert await line.are_finished() == {"completed": 12}
