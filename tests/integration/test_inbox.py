"""The consumer group of a stage on a real server: nothing that was delivered is lost, and nothing is taken twice."""

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from postroad import Settings
from postroad.core import broker
from postroad.core.broker import BLOCK, RETRY_CONSUMER, Keys
from postroad.core.event import Envelope
from postroad.core.servers import Servers, Valkey
from postroad.core.task import new_task_id
from postroad.stages import inbox as inbox_module
from postroad.stages.inbox import Delivery, Inbox
from tests.integration.proxy import LossyProxy

HOUR = timedelta(hours=1)
NOW = timedelta()


class Road:
    """One stage's stream as the relay makes it, and as many consumers as a test needs."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.keys = Keys(settings.prefix)
        self.stream = self.keys.stream("road", "ride")
        self.due = self.keys.due("road", "ride")
        self.group = broker.group_name("road", "ride")
        self.client = broker.command_client(settings)
        self._opened: list[tuple[Inbox, Redis]] = []

    def inbox(self, consumer: str, settings: Settings | None = None) -> Inbox:
        client = broker.command_client(settings or self.settings)
        reader = broker.reading_client(settings or self.settings)
        inbox = Inbox("road", "ride", consumer=consumer, keys=self.keys, client=client, reader=reader)
        self._opened.append((inbox, client))
        return inbox

    async def create(self) -> None:
        await self.client.xgroup_create(self.stream, self.group, id="0", mkstream=True)

    async def add(self, count: int, *, then_kill: bool = False) -> list[str]:
        """Publish ``count`` entries; their ids, in order. ``then_kill`` cuts off all others in the same breath."""
        pipeline = self.client.pipeline(transaction=False)
        for number in range(count):
            fields = {"event": number, "type": "TaskCreated", "task": str(new_task_id()), "time": 0, "traceparent": ""}
            pipeline.xadd(self.stream, fields)  # type: ignore[arg-type]  # redis-py wants an invariant dict
        if then_kill:
            pipeline.client_kill_filter(_type="normal", skipme=True)
        return [str(entry_id) for entry_id in (await pipeline.execute())[:count]]

    async def live(self, consumer: str) -> None:
        await self.client.set(self.keys.alive(0, consumer), 1)

    async def die(self, consumer: str) -> None:
        await self.client.delete(self.keys.alive(0, consumer))

    async def pending(self) -> dict[str, tuple[str, int]]:
        """Who holds each pending entry, and how often it was delivered."""
        entries: Any = await self.client.xpending_range(self.stream, self.group, min="-", max="+", count=100_000)
        return {one["message_id"]: (one["consumer"], one["times_delivered"]) for one in entries}

    async def entries(self) -> list[str]:
        """What is in the stream, in its order."""
        entries: Any = await self.client.xrange(self.stream)
        return [entry_id for entry_id, _ in entries]

    async def consumers(self) -> set[str]:
        return {one["name"] for one in await self.client.xinfo_consumers(self.stream, self.group)}

    async def close(self) -> None:
        for inbox, client in self._opened:
            await inbox.close()
            await client.aclose()
        await self.client.aclose()


@pytest.fixture
async def road(servers: Servers, prefix: str) -> AsyncIterator[Road]:
    road = Road(Settings(redis_url=servers.redis_url, prefix=prefix))
    await road.create()
    yield road
    await road.close()


@pytest.fixture
async def own_road(own_valkey: Valkey) -> AsyncIterator[Road]:
    """A road on a server of its own, for tests that disturb all of it."""
    road = Road(Settings(redis_url=own_valkey.url))
    await road.create()
    yield road
    await road.close()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110 - what a server says, it says when it is asked
            await asyncio.sleep(0.01)


def ids(deliveries: Iterable[Delivery]) -> list[str]:
    return [one.entry_id if isinstance(one, Envelope) else one for one in deliveries]


def counts(deliveries: Iterable[Delivery]) -> list[int]:
    return [one.deliveries for one in deliveries if isinstance(one, Envelope)]


async def is_reading(road: Road) -> bool:
    """True if somebody waits in a read."""
    return any(one["cmd"] == "xreadgroup" and "b" in one["flags"] for one in await road.client.client_list())


async def take_all(take: Callable[[], Awaitable[Sequence[Delivery]]]) -> list[str]:
    taken: list[str] = []
    while got := await take():
        taken += ids(got)
    return taken


# Reading and letting go


async def test_new_entries_are_read_in_their_order_and_are_ours(road: Road) -> None:
    inbox = road.inbox("me")
    added = await road.add(5)

    first = await inbox.read(3)
    second = await inbox.read(3)

    assert ids(first) + ids(second) == added
    assert counts(first) == [1, 1, 1]
    assert await road.pending() == dict.fromkeys(added, ("me", 1))


async def test_an_entry_is_read_by_one_consumer(road: Road) -> None:
    one, other = road.inbox("one"), road.inbox("other")
    added = await road.add(40)

    read = [ids(await inbox.read(5)) for _ in range(4) for inbox in (one, other)]

    assert [entry_id for batch in read for entry_id in batch] == added


async def test_an_entry_that_is_none_of_ours_comes_as_its_id(road: Road) -> None:
    inbox = road.inbox("me")
    alien = await road.client.xadd(road.stream, {"hello": "world"})
    broken = await road.client.xadd(road.stream, {"event": "x", "type": "", "task": "no uuid", "time": "0"})
    foreign = await road.client.xadd(road.stream, {b"\xff\xfe": b"\x80 no UTF-8"})

    assert await inbox.read(5) == [alien, broken, foreign]


async def test_a_read_of_nothing_ends_by_itself(road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "_BLOCK_MS", 100)
    async with asyncio.timeout(BLOCK.total_seconds()):
        assert await road.inbox("me").read(5) == []


async def test_a_waiting_read_is_interrupted_and_loses_nothing(own_road: Road) -> None:
    inbox = own_road.inbox("me")
    reading = asyncio.create_task(inbox.read(5))
    await until(lambda: is_reading(own_road))

    await inbox.interrupt()

    async with asyncio.timeout(BLOCK.total_seconds() / 2):
        assert await reading == []
    added = await own_road.add(1)
    assert ids(await inbox.read(5)) == added


async def test_a_read_that_waits_for_nothing_is_interrupted_in_vain(road: Road) -> None:
    inbox = road.inbox("me")
    await inbox.interrupt()
    added = await road.add(2)
    assert ids(await inbox.read(1)) == added[:1]

    await inbox.interrupt()

    assert ids(await inbox.read(1)) == added[1:]


async def test_acknowledged_entries_are_gone_from_the_group_and_the_stream(road: Road) -> None:
    inbox = road.inbox("me")
    added = await road.add(3)
    await inbox.read(3)

    assert await inbox.acknowledge(added[:2]) == 2

    assert set(await road.pending()) == {added[2]}
    assert await road.client.xlen(road.stream) == 1


async def test_acknowledging_twice_or_nothing_is_harmless(road: Road) -> None:
    inbox = road.inbox("me")
    added = await road.add(1)
    await inbox.read(1)

    assert await inbox.acknowledge(added) == 1
    assert await inbox.acknowledge([*added, "1-1"]) == 0
    assert await inbox.acknowledge([]) == 0


# Parking


async def test_a_parked_entry_waits_under_nobodys_name_until_it_is_due(road: Road) -> None:
    inbox = road.inbox("me")
    (entry_id,) = await road.add(1)
    await inbox.read(1)

    assert await inbox.park([(entry_id, HOUR)]) == 1

    assert (await road.pending())[entry_id][0] == RETRY_CONSUMER
    taken, wait = await inbox.reclaim_due(10)
    assert taken == []
    assert wait is not None
    assert timedelta(minutes=59) < wait <= HOUR


async def test_only_what_we_hold_is_parked(road: Road) -> None:
    me, other = road.inbox("me"), road.inbox("other")
    mine, theirs, nobodys = await road.add(3)
    await me.read(1)
    await other.read(1)

    assert await me.park([(mine, NOW), (theirs, NOW), (nobodys, NOW), ("1-1", NOW)]) == 1

    assert await road.pending() == {mine: (RETRY_CONSUMER, 0), theirs: ("other", 1)}
    assert await road.client.zrange(road.due, 0, -1) == [mine]


async def test_parking_again_does_not_move_what_is_parked(road: Road) -> None:
    inbox = road.inbox("me")
    (entry_id,) = await road.add(1)
    await inbox.read(1)
    await inbox.park([(entry_id, HOUR)])

    assert await inbox.park([(entry_id, NOW)]) == 0

    assert (await inbox.reclaim_due(1))[0] == []


async def test_due_entries_come_in_the_order_in_which_they_are_due(road: Road) -> None:
    inbox = road.inbox("me")
    added = await road.add(6)
    await inbox.read(6)
    # Each is due before the one that was parked before it.
    await inbox.park((entry_id, timedelta(milliseconds=100 - 10 * place)) for place, entry_id in enumerate(added[:5]))
    await inbox.park([(added[5], HOUR)])
    taken: list[str] = []

    async def have_five() -> bool:
        got, wait = await inbox.reclaim_due(2)
        assert len(got) <= 2
        assert wait is not None
        taken.extend(ids(got))
        return len(taken) == 5

    await until(have_five)
    assert taken == added[4::-1]
    assert {owner for owner, _ in (await road.pending()).values()} == {"me", RETRY_CONSUMER}


async def test_an_entry_is_not_taken_before_it_is_due(road: Road) -> None:
    inbox = road.inbox("me")
    (entry_id,) = await road.add(1)
    await inbox.read(1)
    await inbox.park([(entry_id, timedelta(milliseconds=300))])
    parked_at = asyncio.get_running_loop().time()

    async def is_taken() -> bool:
        return ids((await inbox.reclaim_due(1))[0]) == [entry_id]

    await until(is_taken)
    assert asyncio.get_running_loop().time() - parked_at > 0.25


async def test_deliveries_count_from_the_last_outcome(road: Road) -> None:
    inbox = road.inbox("me")
    (entry_id,) = await road.add(1)
    await inbox.read(1)
    for _ in range(3):
        await inbox.park([(entry_id, NOW)])
        taken, wait = await inbox.reclaim_due(1)

        assert counts(taken) == [1]
        assert wait is None
        assert (await road.pending())[entry_id] == ("me", 1)


async def test_a_list_that_names_what_is_not_parked_is_cleared_of_it(road: Road) -> None:
    inbox = road.inbox("me")
    (held,) = await road.add(1)
    await inbox.read(1)
    await road.client.zadd(road.due, {held: 0, "1-1": 0})

    assert await inbox.reclaim_due(10) == ([], None)

    assert (await road.pending())[held] == ("me", 1)


async def test_two_who_reclaim_at_once_take_each_due_entry_once(road: Road) -> None:
    inboxes = [road.inbox(f"worker-{number}") for number in range(4)]
    added = await road.add(400)
    await inboxes[0].read(400)
    await inboxes[0].park((entry_id, NOW) for entry_id in added)

    async def reclaim(inbox: Inbox) -> list[str]:
        return await take_all(lambda: due(inbox, random.randint(1, 9)))

    async def due(inbox: Inbox, count: int) -> list[Delivery]:
        return (await inbox.reclaim_due(count))[0]

    shares = await asyncio.gather(*map(reclaim, inboxes))

    assert sorted(entry_id for share in shares for entry_id in share) == sorted(added)
    assert sum(1 for share in shares if share) > 1
    for inbox, share in zip(inboxes, shares, strict=True):
        assert await inbox.acknowledge(share) == len(share)


# Taking over from the dead


async def test_entries_of_a_consumer_are_taken_only_when_its_heartbeat_is_gone(road: Road) -> None:
    me, other = road.inbox("me"), road.inbox("other")
    await road.live("other")
    added = await road.add(3)
    await other.read(3)

    assert await me.reclaim_dead(10) == []
    await road.die("other")
    assert ids(await me.reclaim_dead(2)) == added[:2]
    assert ids(await me.reclaim_dead(2)) == added[2:]

    assert {owner for owner, _ in (await road.pending()).values()} == {"me"}


async def test_a_heartbeat_that_would_outlast_its_lease_is_cut_to_it(road: Road) -> None:
    me, dead = road.inbox("me"), road.inbox("dead")
    await road.add(1)
    await dead.read(1)
    # As it is left by one who died just before the clock of Redis went back by an hour.
    await road.client.set(road.keys.alive(0, "dead"), 100, px=HOUR)
    await road.client.set(road.keys.alive(0, "other"), 10_000, px=5_000)

    assert await me.reclaim_dead(10) == []
    assert 0 < await road.client.pttl(road.keys.alive(0, "dead")) <= 100
    assert 100 < await road.client.pttl(road.keys.alive(0, "other")) <= 5_000

    async def is_taken() -> bool:
        return bool(await me.reclaim_dead(10))

    await until(is_taken)


async def test_a_consumer_whose_heartbeat_comes_back_at_the_last_moment_keeps_its_entries(road: Road) -> None:
    me, other = road.inbox("me"), road.inbox("other")
    added = await road.add(3)
    await other.read(3)
    look = me._dead

    async def look_and_dawdle() -> list[tuple[str, int]]:
        dead = await look()
        await road.live("other")
        return dead

    me._dead = look_and_dawdle  # type: ignore[method-assign]

    assert await me.reclaim_dead(10) == []
    assert await road.pending() == dict.fromkeys(added, ("other", 1))


async def test_what_is_ours_is_not_taken_from_ourselves_though_our_heartbeat_is_gone(road: Road) -> None:
    me = road.inbox("me")
    await road.add(3)
    await me.read(3)

    assert await me.reclaim_dead(10) == []


async def test_parked_entries_are_never_taken_for_those_of_a_dead_consumer(road: Road) -> None:
    me, dead = road.inbox("me"), road.inbox("dead")
    added = await road.add(400)
    await dead.read(400)
    await dead.park((entry_id, HOUR) for entry_id in added[:350])

    taken = await take_all(lambda: me.reclaim_dead(30))

    assert taken == added[350:]
    assert (await road.pending())[added[0]] == (RETRY_CONSUMER, 0)


async def test_dead_consumers_that_left_nothing_are_removed_from_the_group(road: Road) -> None:
    me, idle, dead, live = (road.inbox(name) for name in ("me", "idle", "dead", "live"))
    await road.live("live")
    added = await road.add(5)
    for inbox in (idle, dead, live):
        await inbox.read(1)
    await idle.acknowledge(added[:1])
    await live.acknowledge(added[2:3])
    await me.read(1)
    await me.park([(added[3], HOUR)])
    assert await road.consumers() == {"me", "idle", "dead", "live", RETRY_CONSUMER}

    assert ids(await me.reclaim_dead(1)) == added[1:2]
    assert await road.consumers() == {"me", "dead", "live", RETRY_CONSUMER}
    assert await me.reclaim_dead(1) == []

    assert await road.consumers() == {"me", "live", RETRY_CONSUMER}
    assert ids(await live.read(1)) == added[4:]


async def test_two_who_take_over_at_once_take_each_entry_once(road: Road) -> None:
    heirs = [road.inbox(f"heir-{number}") for number in range(4)]
    for heir in range(4):
        await road.live(f"heir-{heir}")
    added = await road.add(300)
    for number in range(3):
        await road.inbox(f"dead-{number}").read(100)

    shares = await asyncio.gather(*(take_all(lambda heir=heir: heir.reclaim_dead(7)) for heir in heirs))  # type: ignore[misc]

    assert sorted(entry_id for share in shares for entry_id in share) == sorted(added)
    assert sum(1 for share in shares if share) > 1


async def test_only_deliveries_that_began_to_run_count_towards_the_crash_limit(road: Road) -> None:
    (entry_id,) = await road.add(1)
    await road.inbox("worker-0").read(1)
    for number in range(1, 4):
        # This one waits for its turn until its worker dies by something else.
        assert counts(await road.inbox(f"waiting-{number}").reclaim_dead(1)) == [number + 1]
        inbox = road.inbox(f"worker-{number}")
        (envelope,) = await inbox.reclaim_dead(1)
        assert isinstance(envelope, Envelope)
        assert envelope.deliveries == number + 1

        await inbox.count(envelope)

        assert await road.pending() == {entry_id: (f"worker-{number}", number + 1)}


async def test_a_delivery_is_not_counted_on_what_somebody_else_holds(road: Road) -> None:
    me, heir = road.inbox("me"), road.inbox("heir")
    (entry_id,) = await road.add(1)
    (envelope,) = await me.read(1)
    assert isinstance(envelope, Envelope)
    await heir.reclaim_dead(1)

    await me.count(dataclasses.replace(envelope, deliveries=5))

    assert await road.pending() == {entry_id: ("heir", 1)}


async def test_after_a_crash_and_an_outcome_deliveries_begin_anew(road: Road) -> None:
    (entry_id,) = await road.add(1)
    await road.inbox("dead").read(1)
    me = road.inbox("me")
    (envelope,) = await me.reclaim_dead(1)
    assert isinstance(envelope, Envelope)
    await me.count(envelope)
    await me.park([(entry_id, NOW)])

    assert counts((await me.reclaim_due(1))[0]) == [1]


# Bodies that were deleted


async def test_entries_whose_bodies_were_deleted_are_not_delivered_and_not_kept(road: Road) -> None:
    me = road.inbox("me")
    added = await road.add(6)
    await me.read(2)
    await road.inbox("dead").read(2)
    parker = road.inbox("parker")
    await parker.read(2)
    await parker.park((entry_id, NOW) for entry_id in added[4:])
    await road.client.xdel(road.stream, *added[::2])

    assert ids(await me.recover([], 10)) == [added[1]]
    assert ids(await me.reclaim_dead(10)) == [added[3]]
    assert ids((await me.reclaim_due(10))[0]) == [added[5]]

    assert set(await road.pending()) == set(added[1::2])
    assert await road.client.zcard(road.due) == 0


async def test_a_list_of_deleted_entries_does_not_hide_those_behind_them(road: Road) -> None:
    dead, me = road.inbox("dead"), road.inbox("me")
    added = await road.add(350)
    await dead.read(350)
    await road.client.xdel(road.stream, *added[:340])

    assert await take_all(lambda: me.reclaim_dead(5)) == added[340:]
    assert set(await road.pending()) == set(added[340:])


# Replies that were lost


@pytest.fixture
async def proxy(servers: Servers) -> AsyncIterator[LossyProxy]:
    async with LossyProxy(servers.redis_url).serving() as proxy:
        yield proxy


async def test_entries_of_a_read_whose_reply_was_lost_are_recovered(road: Road, proxy: LossyProxy) -> None:
    me = road.inbox("me", dataclasses.replace(road.settings, redis_url=proxy.url))
    added = await road.add(5)
    held = ids(await me.read(2))
    proxy.lose("xreadgroup")

    with pytest.raises(RedisError):
        await me.read(10)

    assert proxy.lost == 1
    assert ids(await me.recover(held, 2)) == added[2:4]
    assert ids(await me.recover(added[:4], 10)) == added[4:]
    assert await me.recover(added, 10) == []


async def test_a_lost_reply_is_no_crash(road: Road, proxy: LossyProxy) -> None:
    me = road.inbox("me", dataclasses.replace(road.settings, redis_url=proxy.url))
    (entry_id,) = await road.add(1)
    proxy.lose("xreadgroup")
    with pytest.raises(RedisError):
        await me.read(10)

    for _ in range(10):
        assert counts(await me.recover([], 10)) == [1]

    assert await road.pending() == {entry_id: ("me", 1)}


@pytest.mark.parametrize(("taking", "script"), [("reclaim_due", "reclaim_due"), ("reclaim_dead", "reclaim")])
async def test_entries_of_a_reclaim_whose_reply_was_lost_are_recovered(
    road: Road, proxy: LossyProxy, taking: str, script: str
) -> None:
    me = road.inbox("me", dataclasses.replace(road.settings, redis_url=proxy.url))
    other = road.inbox("other")
    added = await road.add(3)
    await other.read(3)
    # The server knows the scripts: what is lost is no complaint that it does not.
    await road.inbox("first").reclaim_due(1)
    await road.live("other")
    await road.inbox("first").reclaim_dead(1)
    await road.die("other")
    if taking == "reclaim_due":
        await other.park((entry_id, NOW) for entry_id in added)
    _, digest = broker._script("postroad.stages", script)
    proxy.lose(digest)

    with pytest.raises(RedisError):
        await getattr(me, taking)(10)

    recovered = await me.recover([], 10)
    assert ids(recovered) == added
    assert counts(recovered) == [1, 1, 1]


async def test_parking_and_acknowledging_may_be_repeated_after_a_lost_reply(road: Road, proxy: LossyProxy) -> None:
    me = road.inbox("me", dataclasses.replace(road.settings, redis_url=proxy.url))
    added = await road.add(2)
    await me.read(2)
    await me.park([])
    proxy.lose("evalsha")
    with pytest.raises(RedisError):
        await me.park([(added[0], HOUR)])
    proxy.lose("xack")
    with pytest.raises(RedisError):
        await me.acknowledge(added[1:])
    assert proxy.lost == 2

    await me.park([(added[0], HOUR)])
    await me.acknowledge(added[1:])

    assert await road.pending() == {added[0]: (RETRY_CONSUMER, 0)}
    assert await road.client.xlen(road.stream) == 1


async def test_entries_of_a_reader_that_is_killed_when_it_is_served_are_recovered(own_road: Road) -> None:
    inbox = own_road.inbox("me")
    seen: set[str] = set()
    added: list[str] = []
    failures = 0
    for _ in range(20):
        reading = asyncio.create_task(inbox.read(5))
        await until(lambda: is_reading(own_road))
        added += await own_road.add(3, then_kill=True)
        try:
            seen.update(ids(await reading))
        except RedisError:
            failures += 1
        while len(seen) < len(added):
            with contextlib.suppress(RedisError):
                seen.update(ids(await inbox.recover(seen, 100)))
                seen.update(ids(await inbox.read(len(added) - len(seen))))

    assert failures == 20
    assert seen == set(added)
    assert set(await own_road.pending()) == set(added)


# A server that forgets, or is demoted


async def test_after_a_wipe_every_call_says_that_the_group_is_gone_or_that_nothing_is_there(own_road: Road) -> None:
    me = own_road.inbox("me")
    added = await own_road.add(3)
    await me.read(3)
    await me.park([(added[0], HOUR)])
    await own_road.client.flushall()

    for call in (
        lambda: me.read(1),
        lambda: me.park([(added[1], NOW)]),
        lambda: me.recover([], 1),
        lambda: me.leave(),
    ):
        with pytest.raises(RedisError) as caught:
            await call()
        assert broker.is_group_missing(caught.value)
    assert await me.reclaim_due(1) == ([], None)
    assert await me.reclaim_dead(1) == []
    assert await me.acknowledge(added) == 0
    assert await own_road.client.exists(own_road.stream) == 0, "what a worker creates hides from the relay what is lost"


async def test_a_waiting_read_hears_of_a_wipe(own_road: Road) -> None:
    reading = asyncio.create_task(own_road.inbox("me").read(1))
    await until(lambda: is_reading(own_road))

    await own_road.client.flushall()

    with pytest.raises(RedisError) as caught:
        await reading
    assert broker.is_group_missing(caught.value)


async def test_scripts_survive_a_server_that_forgot_them(own_road: Road) -> None:
    inbox = own_road.inbox("me")
    (entry_id,) = await own_road.add(1)
    await inbox.read(1)
    await inbox.park([(entry_id, NOW)])
    await own_road.client.script_flush()

    assert ids((await inbox.reclaim_due(1))[0]) == [entry_id]


async def test_a_reader_leaves_a_server_that_was_demoted(own_road: Road) -> None:
    inbox = own_road.inbox("me")
    await own_road.add(1)
    await inbox.read(1)
    await own_road.client.replicaof("127.0.0.1", 1)

    with pytest.raises(RedisError, match=r"read.only"):
        await inbox.read(1)

    async def is_gone() -> bool:
        return not any(one["cmd"] == "xreadgroup" for one in await own_road.client.client_list())

    await until(is_gone)


async def test_parked_entries_whose_list_was_lost_are_listed_again_and_due(road: Road) -> None:
    me = road.inbox("me")
    added = await road.add(2500)
    await me.read(2500)
    await me.park((entry_id, HOUR) for entry_id in added[:2400])
    await road.client.delete(road.due)
    assert await me.reclaim_due(10) == ([], None)

    await me.relist()

    async def due() -> list[Delivery]:
        return (await me.reclaim_due(500))[0]

    assert sorted(await take_all(due)) == sorted(added[:2400])


async def test_a_list_that_is_whole_is_left_as_it_is(road: Road) -> None:
    me = road.inbox("me")
    added = await road.add(3)
    await me.read(3)
    await me.park((entry_id, HOUR) for entry_id in added)

    await me.relist()

    assert await road.client.zcard(road.due) == 3
    assert (await me.reclaim_due(10))[0] == []


async def test_entries_that_stayed_although_nobody_gets_them_are_deleted(road: Road) -> None:
    inbox = road.inbox("one")
    acknowledged, lost, parked, held, beyond = await road.add(5)
    await inbox.read(5)
    (waiting,) = await road.add(1)
    await road.client.xack(road.stream, road.group, acknowledged, lost, beyond)
    await inbox.park([(parked, HOUR)])

    assert await inbox.trim() == 2
    assert await road.entries() == [parked, held, beyond, waiting]
    assert await inbox.trim() == 0

    await inbox.acknowledge([parked, held])
    assert await inbox.trim() == 1
    assert await road.entries() == [waiting]
    assert await inbox.read(1) != []


async def test_a_stream_that_is_not_ours_alone_is_not_trimmed(road: Road) -> None:
    inbox = road.inbox("one")
    (entry,) = await road.add(1)
    await inbox.read(1)
    await road.client.xack(road.stream, road.group, entry)
    await road.client.xgroup_create(road.stream, "a reader of others", id="0")

    assert await inbox.trim() == 0

    await road.client.delete(road.stream)
    assert await inbox.trim() == 0


async def test_who_leaves_takes_nothing_with_him(road: Road) -> None:
    me = road.inbox("me")
    (entry_id,) = await road.add(1)
    await me.read(1)

    await me.leave()
    assert await road.consumers() == {"me"}
    assert await road.pending() == {entry_id: ("me", 1)}

    await me.acknowledge([entry_id])
    await me.leave()
    assert await road.consumers() == set()
    await me.leave()


# Size


async def test_everything_works_beside_20000_parked_entries(road: Road) -> None:
    me, dead = road.inbox("me"), road.inbox("dead")
    added: list[str] = []
    for _ in range(20):
        added += await road.add(1000)
        await me.read(1000)

    await me.park((entry_id, HOUR) for entry_id in added)
    assert await road.client.zcard(road.due) == 20_000
    fresh = await road.add(400)
    assert ids(await me.read(200)) == fresh[:200]
    assert ids(await dead.read(200)) == fresh[200:]
    assert ids(await me.reclaim_dead(100)) == fresh[200:300]
    assert ids(await me.recover(fresh[:200], 100)) == fresh[200:300]
    assert (await me.reclaim_due(100))[0] == []
    await me.relist()
    await me.park((entry_id, NOW) for entry_id in fresh[:100])
    assert set(ids((await me.reclaim_due(100))[0])) == set(fresh[:100])
    assert await me.acknowledge(fresh[:200]) == 200
    await road.client.delete(road.due)
    await me.relist()
    assert await road.client.zcard(road.due) == 20_000
    assert len((await me.reclaim_due(100))[0]) == 100
    await me.leave()
