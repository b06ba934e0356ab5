"""The lanes of a stage on a real server: as one inbox, with an entry of each lane told from those of the others."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from postroad import Settings
from postroad.core import broker
from postroad.core.broker import BLOCK, Keys
from postroad.core.event import Envelope
from postroad.core.priority import Priority
from postroad.core.task import new_task_id
from postroad.stages.holding import entry_id_of
from postroad.stages.inbox import Delivery
from postroad.stages.lanes import Lanes

HIGH, NORMAL, LOW = Priority
GROUP = broker.group_name("road", "ride")


class Crossing:
    """The lanes of one stage, and those who read them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.keys = Keys(settings.prefix)
        self.client: Redis = broker.command_client(settings)
        self._opened: list[Lanes] = []

    def lanes(self, consumer: str) -> Lanes:
        """What a worker has that was told of priorities."""
        lanes = Lanes(
            "road", "ride", consumer=consumer, keys=self.keys, client=self.client,
            reader=broker.reading_client(self.settings),
        )  # fmt: skip
        lanes.set_open(True)
        self._opened.append(lanes)
        return lanes

    def stream(self, lane: Priority) -> str:
        return self.keys.stream("road", "ride", lane.lane)

    async def create(self, *lanes: Priority) -> None:
        for lane in lanes:
            await self.client.xgroup_create(self.stream(lane), GROUP, id="0", mkstream=True)

    async def add(self, count: int, *lanes: Priority) -> list[str]:
        """Publish ``count`` entries in each lane, with the same ids; these."""
        ids = [f"1-{number}" for number in range(1, count + 1)]
        for lane in lanes:
            for entry_id in ids:
                fields = {"event": 1, "type": "StageRequested", "task": str(new_task_id()), "time": 0}
                await self.client.xadd(self.stream(lane), fields, id=entry_id)  # type: ignore[arg-type]  # invariant
        return ids

    async def pending(self, lane: Priority, consumer: str) -> int:
        counted = await self.client.xpending_range(
            self.stream(lane), GROUP, min="-", max="+", count=1000, consumername=consumer
        )
        return len(counted)

    async def is_waiting(self) -> bool:
        """True if somebody waits for an entry."""
        return any(one["cmd"] == "xread" and "b" in one["flags"] for one in await self.client.client_list())

    async def close(self) -> None:
        for lanes in self._opened:
            await lanes.close()
        await self.client.aclose()


@pytest.fixture
async def crossing(settings: Settings) -> AsyncIterator[Crossing]:
    made = Crossing(settings)
    yield made
    await made.close()


def ids(deliveries: Iterable[Delivery]) -> list[str]:
    return [entry_id_of(one) for one in deliveries]


def of_lanes(deliveries: Iterable[Delivery]) -> Counter[str]:
    return Counter(entry_id.partition("@")[2] or "normal" for entry_id in ids(deliveries))


async def test_no_more_is_read_than_there_is_room_for_and_by_weight(crossing: Crossing) -> None:
    await crossing.create(*Priority)
    await crossing.add(30, *Priority)
    lanes = crossing.lanes("me")

    assert of_lanes(await lanes.read(12)) == {"high": 8, "normal": 3, "low": 1}
    assert of_lanes(await lanes.read(2)) == {"high": 2}
    rest = [await lanes.read(19) for _ in range(4)]

    assert [len(read) for read in rest] == [19, 19, 19, 19]
    assert sum(map(of_lanes, rest), Counter()) == {"high": 20, "normal": 27, "low": 29}


async def test_entries_with_one_id_in_several_lanes_are_let_go_each_by_itself(crossing: Crossing) -> None:
    await crossing.create(*Priority)
    await crossing.add(2, *Priority)
    lanes = crossing.lanes("me")
    read = ids(await lanes.read(6))
    assert sorted(read) == ["1-1", "1-1@high", "1-1@low", "1-2", "1-2@high", "1-2@low"]

    assert await lanes.acknowledge(["1-1@high", "1-2@high", "1-1"]) == 3
    assert await lanes.park([("1-2", timedelta()), ("1-1@low", timedelta(hours=1)), ("1-2@low", timedelta())]) == 3

    assert [await crossing.client.xlen(crossing.stream(lane)) for lane in Priority] == [0, 1, 2]
    due, wait = await lanes.reclaim_due(10)
    assert ids(due) == ["1-2", "1-2@low"]
    assert wait is not None
    assert timedelta(minutes=59) < wait <= timedelta(hours=1)


async def test_what_is_due_again_is_reclaimed_by_weight(crossing: Crossing) -> None:
    await crossing.create(*Priority)
    await crossing.add(30, *Priority)
    lanes = crossing.lanes("me")
    await lanes.park((entry_id, timedelta()) for entry_id in ids(await lanes.read(90)))

    due, wait = await lanes.reclaim_due(24)
    assert of_lanes(due) == {"high": 16, "normal": 6, "low": 2}
    assert wait == timedelta()
    one_by_one = [await lanes.reclaim_due(1) for _ in range(12)]
    assert sum((of_lanes(due) for due, _ in one_by_one), Counter()) == {"high": 8, "normal": 3, "low": 1}
    assert of_lanes((await lanes.reclaim_due(100))[0]) == {"high": 6, "normal": 21, "low": 27}


async def test_a_lost_reply_is_recovered_in_each_lane_without_what_is_held(crossing: Crossing) -> None:
    await crossing.create(*Priority)
    await crossing.add(2, *Priority)
    lanes, elsewhere = crossing.lanes("me"), crossing.lanes("me")
    held = ids(await lanes.read(3))
    lost = ids(await elsewhere.read(3))

    assert sorted(ids(await lanes.recover(held, 10))) == sorted(lost)
    assert len(await lanes.recover([], 4)) == 4


async def test_the_dead_leave_their_entries_in_each_lane(crossing: Crossing) -> None:
    await crossing.create(*Priority)
    await crossing.add(2, *Priority)
    dying, living = crossing.lanes("dying"), crossing.lanes("living")
    left = ids(await dying.read(6))

    taken = await living.reclaim_dead(5) + await living.reclaim_dead(5)
    assert sorted(ids(taken)) == sorted(left)
    envelopes = [one for one in taken if isinstance(one, Envelope)]
    assert [one.deliveries for one in envelopes] == [2] * 6
    for envelope in envelopes:
        await living.count(envelope)
    counted = [
        one["times_delivered"]
        for lane in Priority
        for one in await crossing.client.xpending_range(crossing.stream(lane), GROUP, min="-", max="+", count=9)
    ]
    assert counted == [2] * 6
    await living.reclaim_dead(5)  # removes those who have nothing left
    names = [await crossing.client.xinfo_consumers(crossing.stream(lane), GROUP) for lane in Priority]
    assert [[one["name"] for one in consumers] for consumers in names] == [["living"]] * 3


async def test_whoever_leaves_leaves_each_lane_that_it_met(crossing: Crossing) -> None:
    await crossing.create(*Priority)
    await crossing.add(1, *Priority)
    lanes = crossing.lanes("me")
    await lanes.acknowledge(ids(await lanes.read(3)))
    lanes.set_open(False)

    await lanes.leave()

    assert [await crossing.client.xinfo_consumers(crossing.stream(lane), GROUP) for lane in Priority] == [[], [], []]


@pytest.mark.parametrize("lane", Priority)
async def test_a_wait_ends_when_an_entry_comes_into_any_lane(crossing: Crossing, lane: Priority) -> None:
    await crossing.create(*Priority)
    await crossing.add(1, *Priority)
    lanes = crossing.lanes("me")
    await lanes.acknowledge(ids(await lanes.read(5)))
    began = time.monotonic()
    waiting = asyncio.create_task(lanes.read(5))
    while not await crossing.is_waiting():  # noqa: ASYNC110 - what a server says, it says when it is asked
        await asyncio.sleep(0.005)

    await crossing.client.xadd(crossing.stream(lane), {"event": "none of ours"}, id="2-1")

    assert await waiting == []
    assert time.monotonic() - began < BLOCK.total_seconds() / 2
    mark = f"@{lane.lane}" if lane.lane else ""
    assert await lanes.read(5) == [f"2-1{mark}"]


async def test_a_wait_that_is_interrupted_has_taken_nothing(crossing: Crossing) -> None:
    await crossing.create(*Priority)
    lanes = crossing.lanes("me")
    waiting = asyncio.create_task(lanes.read(5))
    while not waiting.done():
        await lanes.interrupt()
        await asyncio.sleep(0.01)

    assert await waiting == []
    await crossing.add(1, *Priority)
    assert len(await lanes.read(5)) == 3


async def test_a_lane_that_is_missing_holds_up_no_other(crossing: Crossing) -> None:
    await crossing.create(HIGH, NORMAL)
    await crossing.add(3, *Priority)  # the low one has a stream, but no group
    lanes = crossing.lanes("me")

    assert of_lanes(await lanes.read(20)) == {"high": 3, "normal": 3}
    assert of_lanes(await lanes.recover([], 20)) == {"high": 3, "normal": 3}
    assert await lanes.park([("1-1@high", timedelta()), ("1-1", timedelta()), ("1-1@low", timedelta())]) == 2
    assert of_lanes((await lanes.reclaim_due(20))[0]) == {"high": 1, "normal": 1}
    assert await lanes.reclaim_dead(5) == []
    await lanes.relist()
    await lanes.trim()
    began = time.monotonic()
    assert await lanes.read(20) == []
    assert time.monotonic() - began > BLOCK.total_seconds() / 2, "whoever has nothing to read must wait"


async def test_that_all_lanes_are_missing_is_told(crossing: Crossing) -> None:
    lanes = crossing.lanes("me")
    for call in (lambda: lanes.read(5), lambda: lanes.recover([], 5), lanes.wait):
        with pytest.raises(ResponseError) as raised:
            await call()
        assert broker.is_group_missing(raised.value)


async def test_what_was_parked_is_listed_again_and_what_is_left_over_trimmed_in_each_lane(crossing: Crossing) -> None:
    await crossing.create(*Priority)
    await crossing.add(2, *Priority)
    lanes = crossing.lanes("me")
    read = ids(await lanes.read(6))
    await lanes.park((entry_id, timedelta(hours=1)) for entry_id in read if entry_id.startswith("1-2"))
    for lane in Priority:
        await crossing.client.xack(crossing.stream(lane), GROUP, "1-1")
        await crossing.client.delete(crossing.keys.due("road", "ride", lane.lane))

    assert await lanes.trim() == 3
    await lanes.relist()

    assert len((await lanes.reclaim_due(10))[0]) == 3
