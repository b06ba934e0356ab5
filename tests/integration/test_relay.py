"""The relay: every event to the stages that wait for it, once, whatever dies or is lost on the way."""

import asyncio
import contextlib
import functools
import gc
import itertools
import logging
import random
import re
import types
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from postroad import Event, Pipeline, Reject, Retry, Settings, append
from postroad.core import broker
from postroad.core.broker import Keys, group_name
from postroad.core.database import Statements, connect_psycopg
from postroad.core.errors import SchemaError
from postroad.core.servers import Postgres, Valkey
from postroad.migrations import upgrade
from postroad.outbox.marker import Marker
from postroad.outbox.ticks import PAGE, Appended, Ticks
from postroad.relay import relay as module
from postroad.relay.publish import Entry, Publication, Shard
from postroad.relay.relay import Relay, _Session
from postroad.relay.route import Lane
from postroad.relay.sweep import Sweep
from postroad.testing.traffic import until
from tests.integration.proxy import LossyProxy
from tests.integration.road import Road, open_road, pipeline

FORK = pipeline("fork", start=(), left="start", right="start", meet=("left", "right"), arrive="meet")
"""One stage, two side by side, one that waits for both, one after it."""

PLAIN = pipeline("plain", start=(), arrive="start")


class Post:
    """A road, and what has come out of it at Redis' end."""

    def __init__(self, road: Road, session: psycopg.AsyncConnection[Any]) -> None:
        self.road = road
        self.session = session
        self.settings = road.settings
        self.clients = broker.Clients(road.settings)
        self.client: Redis = self.clients.of(0)
        self.keys = Keys(road.settings.prefix, road.settings.shards)
        self.ticks = Ticks(session, road.settings.schema)

    async def entries(self, stage: str, pipeline: Pipeline = FORK) -> list[dict[str, str]]:
        """The entries of a stage's stream, oldest first."""
        answer: Any = await self.client.xrange(self.keys.stream(pipeline.name, stage))
        return [fields for _, fields in answer if "task" in fields]

    async def arrived(self, stage: str, pipeline: Pipeline = FORK) -> list[tuple[str, UUID]]:
        """What has arrived at a stage: the type of the event, and the task."""
        return [(entry["type"], UUID(entry["task"])) for entry in await self.entries(stage, pipeline)]

    async def tasks_at(self, stage: str, pipeline: Pipeline = FORK) -> list[UUID]:
        return [task for _, task in await self.arrived(stage, pipeline)]

    async def has(self, tasks: Iterable[UUID], stage: str = "start", *, since: int = 0) -> bool:
        """True if all of ``tasks`` have arrived at a stage, after the first ``since`` entries."""
        return set(tasks) <= set((await self.tasks_at(stage))[since:])

    async def receives(self, tasks: Iterable[UUID], stage: str = "start") -> None:
        """Wait until all of ``tasks`` have arrived at a stage."""
        wanted = set(tasks)
        await until(lambda: self.has(wanted, stage))

    async def marker(self, shard: int = 0) -> str:
        answer: Any = await self.client.get(self.keys.marker(shard))
        return answer or ""

    async def is_caught_up(self) -> bool:
        """True if everything that is committed has been published, in every shard."""
        last, _ = await self.ticks.last()
        markers = {await self.marker(shard) for shard in self.keys.shards}
        return markers == {f"{last.tick}:end"} and not await self.ticks.is_news(last)

    async def caught_up(self) -> None:
        await until(self.is_caught_up)

    async def requests(self, reason: str) -> list[tuple[UUID, str]]:
        """What was asked for again, and how often, for this reason."""
        rows = await self.road.ask(
            "select task_id, stage from postroad.outbox"
            " where type = 'StageRequested' and data ->> 'reason' = :reason order by position",
            reason=reason,
        )
        return [(task_id, stage) for task_id, stage in rows]

    async def is_asleep(self) -> bool:
        """True if a relay has announced that it sleeps."""
        return bool(await self.holders("asleep"))

    async def is_awake(self) -> bool:
        return not await self.is_asleep()

    async def counts_on_awake(self) -> bool:
        """True if a transaction is open that appended while the relay was awake."""
        return bool(await self.holders("asleep", "ShareLock"))

    async def holders(self, lock: str, mode: str = "ExclusiveLock") -> list[int]:
        """The processes of Postgres that hold one of our locks."""
        cursor = await self.session.execute(
            "select pid from pg_locks where locktype = 'advisory' and granted and mode = %s"
            " and database = (select oid from pg_database where datname = current_database())"
            " and (classid::bigint << 32 | objid::bigint) = hashtextextended(%s, 0)",
            (mode, f"{self.settings.schema}.{lock}"),
        )
        return [pid for (pid,) in await cursor.fetchall()]

    async def append(self, *events: Event) -> None:
        async with self.road.engine.begin() as connection:
            await append(connection, *events)


def once(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    """A condition that needs no waiting, for ``until``."""

    async def is_true() -> bool:
        return condition()

    return is_true


@contextlib.asynccontextmanager
async def open_post(settings: Settings, *pipelines: Pipeline) -> AsyncIterator[Post]:
    async with (
        open_road(settings, *pipelines) as road,
        await connect_psycopg(settings, application="test") as session,
    ):
        post = Post(road, session)
        try:
            yield post
        finally:
            await post.client.aclose()


@pytest.fixture
async def post(settings: Settings) -> AsyncIterator[Post]:
    async with open_post(settings, FORK) as opened:
        yield opened


@pytest.fixture
async def lossy_post(settings: Settings, own_valkey: Valkey) -> AsyncIterator[Post]:
    """With a Redis of its own, to be emptied, filled up and ended."""
    async with open_post(replace(settings, redis_url=own_valkey.url), FORK) as opened:
        yield opened


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at Redis, and try again, more often than in earnest."""
    for name, seconds in {"POLL": 0.03, "INSPECT": 0.03, "SHORTEST_PAUSE": 0.02, "LONGEST_PAUSE": 0.1}.items():
        monkeypatch.setattr(module, name, seconds)


@contextlib.asynccontextmanager
async def relaying(settings: Settings, relays: int = 1) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Relays at work; they are cancelled at the end, and their errors are the test's."""
    tasks = [asyncio.create_task(Relay(settings).run()) for _ in range(relays)]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


# Routing.


async def test_an_event_arrives_at_exactly_the_stages_that_wait_for_it(post: Post) -> None:
    async with relaying(post.settings):
        await post.caught_up()
        task, other = await post.road.accept(FORK), await post.road.accept(FORK)
        await post.caught_up()
        assert await post.arrived("start") == [("TaskCreated", task), ("TaskCreated", other)]
        assert not [stage for stage in ("left", "right", "meet", "arrive") if await post.entries(stage)]

        await post.road.commit(task, "start", pipeline=FORK)
        await post.caught_up()
        assert await post.arrived("left") == await post.arrived("right") == [("StageCompleted", task)]
        assert not [stage for stage in ("meet", "arrive") if await post.entries(stage)]

        await post.road.commit(task, "left", pipeline=FORK)
        await post.caught_up()
        assert await post.entries("meet") == [], "it waits for both"

        await post.road.commit(task, "right", pipeline=FORK)
        await post.caught_up()
        assert await post.arrived("meet") == [("StageRequested", task)], "by the one who knew that he was the last"

        await post.road.commit(task, "meet", pipeline=FORK)
        await post.road.commit(task, "arrive", pipeline=FORK)
        await post.caught_up()
        assert await post.arrived("arrive") == [("StageCompleted", task)]
        assert {stage: len(await post.entries(stage)) for stage in FORK.graph()} == {
            "start": 2,
            "left": 1,
            "right": 1,
            "meet": 1,
            "arrive": 1,
        }


async def test_events_that_nobody_waits_for_stay_in_the_outbox(post: Post) -> None:
    task = await post.road.accept(FORK)
    async with relaying(post.settings):
        await post.caught_up()
        before = await post.tasks_at("start")

        await post.append(
            Event("HostReserved", task, FORK.name),
            Event("HostReserved", task, FORK.name, "start"),
            Event("StageCompleted", task, FORK.name, "arrive"),
            Event("StageCompleted", task, FORK.name, "left"),
            Event("StageCompleted", task, FORK.name, "no_such_stage"),
            Event("StageRequested", task, FORK.name, "no_such_stage"),
            Event("StageRequested", task, "no_such_pipeline", "start"),
            Event("TaskCreated", task, "no_such_pipeline"),
            Event("TaskCompleted", task, FORK.name),
        )
        await post.road.commit(task, "start", Retry("later"), pipeline=FORK)
        await post.road.commit(task, "start", Reject("never"), pipeline=FORK)
        await post.caught_up()

        assert await post.tasks_at("start") == before
        assert not [stage for stage in ("left", "right", "meet", "arrive") if await post.entries(stage)]


async def test_stages_of_one_name_in_two_pipelines_are_two(post: Post) -> None:
    await post.road.deploy(PLAIN)
    async with relaying(post.settings):
        await post.caught_up()
        forked, plain = await post.road.accept(FORK), await post.road.accept(PLAIN)
        await post.road.commit(plain, "start", pipeline=PLAIN)
        await post.caught_up()

        assert await post.tasks_at("start") == [forked]
        assert await post.tasks_at("start", PLAIN) == [plain]
        assert await post.tasks_at("arrive", PLAIN) == [plain]
        assert await post.entries("arrive") == []


async def test_an_entry_names_the_event_and_leaves_the_data_in_postgres(post: Post) -> None:
    async with relaying(post.settings):
        await post.caught_up()
        task = await post.road.accept(FORK, payload={"secret": 1})
        await post.caught_up()

    ((position, milliseconds, traceparent),) = await post.road.ask(
        "select position, (extract(epoch from occurred_at) * 1000)::bigint, traceparent"
        " from postroad.outbox where task_id = :task",
        task=task,
    )
    assert await post.entries("start") == [
        {
            "event": str(position),
            "type": "TaskCreated",
            "task": str(task),
            "time": str(milliseconds),
            "traceparent": traceparent,
        }
    ]


async def test_the_stages_are_spread_over_the_shards_each_with_its_own_marker(settings: Settings) -> None:
    async with open_post(replace(settings, shards=5), FORK, PLAIN) as post, relaying(post.settings):
        await post.caught_up()
        tasks = [await post.road.accept(FORK) for _ in range(3)]
        await post.road.commit(tasks[0], "start", pipeline=FORK)
        await post.caught_up()

        assert await post.tasks_at("start") == tasks
        assert await post.tasks_at("left") == await post.tasks_at("right") == tasks[:1]
        keys = [key async for key in post.client.scan_iter(match=f"{settings.prefix}*")]
        assert len([key for key in keys if key.endswith(":marker")]) == 5
        assert len({key.partition("}")[0] for key in keys if key.endswith(":stream")}) > 1


async def test_the_order_of_a_stream_is_that_of_the_windows_and_positions(post: Post) -> None:
    async with relaying(post.settings):
        await post.caught_up()
        async with post.road.engine.begin() as slow:
            late = Event("StageRequested", UUID(int=1), FORK.name, "start")
            await append(slow, late)
            tasks = [await post.road.accept(FORK) for _ in range(20)]
            await post.receives(tasks)
        await post.caught_up()

        assert await post.tasks_at("start") == [*tasks, late.task_id]


async def test_a_giant_window_is_published_in_pages(post: Post) -> None:
    async with relaying(post.settings):
        await post.caught_up()
    tasks = [UUID(int=number) for number in range(1, 5_001)]
    await post.append(*(Event("TaskCreated", task, FORK.name) for task in tasks))

    async with relaying(post.settings):
        await post.caught_up()

    assert await post.tasks_at("start") == tasks
    assert len(await post.road.ask("select from postroad.tick where tick > 0")) <= 3


async def test_a_window_of_which_a_part_was_published_is_gone_on_with(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with relaying(post.settings):
        await post.caught_up()
    tasks = [UUID(int=number) for number in range(1, 4 * PAGE + 1)]
    await post.append(*(Event("TaskCreated", task, FORK.name) for task in tasks))
    publish, pages = Shard.publish, 0

    async def die_after_two_pages(self: Shard, entries: list[Entry], *, seen: str, then: Marker) -> Publication:
        nonlocal pages
        pages += len(entries) > 0
        if pages == 3:
            raise asyncio.CancelledError
        return await publish(self, entries, seen=seen, then=then)

    with monkeypatch.context() as dying:
        dying.setattr(Shard, "publish", die_after_two_pages)
        with contextlib.suppress(asyncio.CancelledError):
            await Relay(post.settings).run()
    assert await post.tasks_at("start") == tasks[: 2 * PAGE]
    marker = Marker.parse(await post.marker())
    assert marker is not None
    assert marker.position is not None

    async with relaying(post.settings):
        await post.caught_up()

    assert await post.tasks_at("start") == tasks


async def test_a_stage_that_is_deployed_while_the_relay_works_is_served(post: Post, quick: None) -> None:
    async with relaying(post.settings):
        await post.caught_up()
        task = await post.road.accept(FORK)
        await post.road.commit(task, "start", pipeline=FORK)
        await post.caught_up()

        longer = pipeline(
            "fork", start=(), left="start", right="start", up="start", meet=("left", "right"), arrive="meet"
        )
        await post.road.deploy(longer)
        other = await post.road.accept(longer)
        await post.road.commit(other, "start", pipeline=longer)

        await post.receives([task, other], "up")


async def test_a_database_without_our_tables_is_told_so(post: Post) -> None:
    with pytest.raises(SchemaError, match="schema 'no_road' has no tables of postroad: run postroad migrate"):
        await Relay(replace(post.settings, schema="no_road")).run()


async def test_tables_in_another_schema_are_relayed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL", 600)
    upgrade(settings.database_url, "other_road")
    other = replace(settings, schema="other_road")
    async with open_post(other, FORK) as post, relaying(other):
        await post.caught_up()
        await until(post.is_asleep)

        tasks = [await post.road.accept(FORK) for _ in range(3)]

        await post.receives(tasks)


# Several relays.


async def test_one_of_several_relays_works_and_another_takes_over(post: Post, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, module.__name__)
    accepted: list[UUID] = []

    async with relaying(post.settings, relays=3) as relays:
        await post.caught_up()
        for ended in range(3):
            accepted += [await post.road.accept(FORK) for _ in range(20)]
            await post.receives(accepted)
            assert sum(message.startswith("relaying from") for message in caplog.messages) == ended + 1
            (leader,) = await post.holders("relay")
            await post.road.ask("select pg_terminate_backend(:pid)", pid=leader)
        await post.caught_up()
        assert not any(relay.done() for relay in relays)

    assert await post.tasks_at("start") == accepted


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Miss a relay soon."""
    monkeypatch.setattr(module, "SILENCE", timedelta(seconds=0.5))


@contextlib.asynccontextmanager
async def leading(post: Post) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A session that has the lead, and says nothing more by itself."""
    session = await connect_psycopg(post.settings, application="stopped relay")
    try:
        await session.execute(Statements(module.__package__ or "", post.settings.schema)["try_lead"])
        assert await post.holders("relay") == [session.info.backend_pid]
        yield session
    finally:
        await session.close()


async def test_a_relay_that_falls_silent_is_replaced(
    post: Post, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    task = await post.road.accept(FORK)
    async with leading(post) as silent, relaying(replace(post.settings, lease=timedelta(seconds=1))):
        await post.receives([task])
        with pytest.raises(psycopg.errors.AdminShutdown):
            await silent.execute("select")

    (line,) = [message for message in caplog.messages if "silent" in message]
    assert re.fullmatch(
        r"the working relay has been silent for [12] s: ended its session \(process \d+ of Postgres\)", line
    )


async def test_a_relay_that_takes_no_answer_is_silent(post: Post, impatient: None) -> None:
    task = await post.road.accept(FORK)
    async with leading(post) as silent, relaying(replace(post.settings, lease=timedelta(seconds=1))):
        # More than fits on the way, and nobody fetches it.
        silent.pgconn.send_query(b"select repeat('x', 1000) from generate_series(1, 1000000)")
        await post.receives([task])


async def test_a_relay_that_waits_for_postgres_is_not_silent(post: Post, impatient: None) -> None:
    async with leading(post) as busy, relaying(replace(post.settings, lease=timedelta(seconds=1))):
        # Twice as long as a silent one is let be.
        await busy.execute("select pg_sleep(3)")
        assert await post.holders("relay") == [busy.info.backend_pid]


async def test_a_relay_of_another_role_is_left_alone(post: Post) -> None:
    """To try would be refused, and end the relay that tries."""
    depose = Statements(module.__package__ or "", post.settings.schema)["depose"]
    async with leading(post) as silent:
        await post.session.execute("set role pg_read_all_stats")
        assert await (await post.session.execute(depose, {"silence": timedelta()})).fetchall() == []
        await post.session.execute("reset role")
        await silent.execute("select")
        assert len(await (await post.session.execute(depose, {"silence": timedelta()})).fetchall()) == 1


async def test_a_relay_at_work_is_not_replaced_whatever_becomes_of_redis(
    lossy_post: Post, impatient: None, own_valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    post = lossy_post
    caplog.set_level(logging.INFO, module.__name__)
    async with relaying(replace(post.settings, lease=timedelta(seconds=1)), relays=2):
        await post.caught_up()
        (leader,) = await post.holders("relay")
        own_valkey.stop()
        await until(once(lambda: sum("waiting for Redis" in message for message in caplog.messages) > 3))
        own_valkey.start()
        await post.client.connection_pool.disconnect()
        task = await post.road.accept(FORK)
        await post.receives([task])
        assert await post.holders("relay") == [leader]


async def test_relays_that_all_work_at_once_publish_each_event_once(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Correctness does not rest on the lock."""
    monkeypatch.setattr(_Session, "_lead", no_lock)
    async with relaying(post.settings):
        await post.caught_up()
    moved = count_calls(monkeypatch, Shard, "publish", lambda publication: publication is Publication.MOVED)

    async with relaying(post.settings, relays=3):
        accepted = [
            task for _ in range(20) for task in await asyncio.gather(*(post.road.accept(FORK) for _ in range(10)))
        ]
        await post.receives(accepted)
        await post.append(*(Event("TaskCreated", UUID(int=number), FORK.name) for number in range(1, 1_500)))
        await post.caught_up()

    positions = [entry["event"] for entry in await post.entries("start")]
    assert len(positions) == len(set(positions)) == len(accepted) + 1_499
    assert moved.count > 0, "they did meet"
    assert await post.requests("no marker") == []


async def test_relays_that_begin_at_once_with_an_empty_redis_agree(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Session, "_lead", no_lock)
    accepted = [await post.road.accept(FORK) for _ in range(20)]

    async with relaying(post.settings, relays=3):
        await post.receives(accepted)
        await post.caught_up()

    arrived = await post.arrived("start")
    assert Counter(type for type, _ in arrived).keys() <= {"StageRequested", "TaskCreated"}
    positions = [entry["event"] for entry in await post.entries("start")]
    assert len(positions) == len(set(positions))


async def no_lock(_: _Session) -> None:
    """In place of the wait for the lock."""


@dataclass
class Calls:
    """How often a method was called, and came to something."""

    count: int = 0


def count_calls(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, counts: Callable[[Any], bool] = lambda result: True
) -> Calls:
    method, calls = getattr(owner, name), Calls()

    @functools.wraps(method)
    async def counted(*arguments: Any, **options: Any) -> Any:
        result = await method(*arguments, **options)
        calls.count += counts(result)
        return result

    monkeypatch.setattr(owner, name, counted)
    return calls


# The page and its marker.


def entry(stage: str, number: int = 1) -> Entry:
    return Entry(
        Lane(FORK.name, stage), Appended(number, UUID(int=number), FORK.name, "StageRequested", stage, None, number)
    )


async def test_a_page_and_its_marker_go_in_together_or_not_at_all(post: Post) -> None:
    shard = Shard(0, post.keys, post.client)
    await shard.create(Lane(FORK.name, "left"))
    await shard.create(Lane(FORK.name, "right"))
    assert await shard.set_marker(Marker(7, None), seen="")
    page = [entry("left", 1), entry("right", 2), entry("left", 3)]

    async def stands() -> tuple[str, list[UUID], list[UUID]]:
        return await post.marker(), await post.tasks_at("left"), await post.tasks_at("right")

    for stage in ("meet", "arrive"):
        refused = await shard.publish([*page, entry(stage)], seen="7:end", then=Marker(8, None))
        assert refused is Publication.MISSING
    await post.client.xgroup_destroy(post.keys.stream(FORK.name, "right"), group_name(FORK.name, "right"))
    assert await shard.publish(page, seen="7:end", then=Marker(8, None)) is Publication.MISSING
    await shard.create(Lane(FORK.name, "right"))
    for seen in ("", "6:end", "7:1", "7:en"):
        assert await shard.publish(page, seen=seen, then=Marker(8, None)) is Publication.MOVED
    assert await stands() == ("7:end", [], [])

    assert await shard.publish(page, seen="7:end", then=Marker(8, 3)) is Publication.DONE
    assert await stands() == ("8:3", [UUID(int=1), UUID(int=3)], [UUID(int=2)])

    assert await shard.publish(page, seen="7:end", then=Marker(8, 3)) is Publication.MOVED
    assert await shard.publish([], seen="8:3", then=Marker(8, None)) is Publication.DONE
    assert await stands() == ("8:end", [UUID(int=1), UUID(int=3)], [UUID(int=2)])
    assert not await post.client.exists(post.keys.stream(FORK.name, "meet"))


async def test_a_marker_is_set_by_one_of_those_who_saw_the_same(post: Post) -> None:
    shard = Shard(0, post.keys, post.client)

    assert await shard.set_marker(Marker(7, None), seen="")
    assert not await shard.set_marker(Marker(8, None), seen="")
    assert await shard.set_marker(Marker(8, 5), seen="7:end")

    assert await post.marker() == "8:5"


@pytest.mark.parametrize("marker", [Marker(7, None), Marker(7, 0), Marker(1_700_000_000_000, 2**62)])
def test_a_marker_is_read_as_it_was_written(marker: Marker) -> None:
    assert Marker.parse(str(marker)) == marker


async def test_a_look_at_a_shard_tells_what_is_gone_and_changes_nothing(post: Post) -> None:
    shard = Shard(0, post.keys, post.client)
    lanes = [Lane(FORK.name, stage) for stage in FORK.graph()]
    await shard.create(Lane(FORK.name, "left"))
    await shard.create(Lane(FORK.name, "right"))
    await shard.create(Lane(FORK.name, "right"))
    await post.client.xgroup_destroy(post.keys.stream(FORK.name, "right"), group_name(FORK.name, "right"))
    await post.client.xgroup_create(post.keys.stream(FORK.name, "right"), "another group")

    await shard.check_writable()
    found = await shard.inspect(lanes)

    assert found == ("", [lane for lane in lanes if lane.stage != "left"])
    assert not await post.client.exists(post.keys.marker(0))
    await post.client.set(post.keys.stream(FORK.name, "meet"), "a string")
    with pytest.raises(ResponseError, match=r"WRONGTYPE .*:fork\.meet:stream"):
        await shard.inspect(lanes)


# Death at any point.


ABRUPT = pytest.mark.filterwarnings("ignore::ResourceWarning")
"""For tests in which connections and cursors are given up wherever they stand."""


@pytest.fixture
def burial() -> Iterator[None]:
    """Closes the connections that were given up while they were made: Postgres would wait for a minute for each."""
    yield
    gc.collect()


class Mortal:
    """Work that is cancelled where it waits for the ``last``-th time; ``died_at`` is what ``phase`` was then."""

    def __init__(self, work: Coroutine[Any, Any, None], last: int, *, phase: str = "") -> None:
        self.phase = phase
        self.died_at = ""
        self._work = work
        self._last = last

    async def run(self) -> None:
        await self._until_cancelled(self._work)

    @types.coroutine
    def _until_cancelled(self, work: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
        awaiting = work.__await__()
        awaited = awaiting.send(None)
        for wait in itertools.count(1):
            if wait == self._last:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                self.died_at = self.phase
            try:
                sent = yield awaited
            except BaseException as error:
                awaited = awaiting.throw(error)
            else:
                awaited = awaiting.send(sent)


@pytest.mark.timeout(300)
@ABRUPT
async def test_a_relay_may_die_wherever_it_waits(
    post: Post, quick: None, burial: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it begins, publishes in pages, replaces a stream: the next relay does the rest."""
    monkeypatch.setattr(_Session, "_lead", no_lock)
    died_at: Counter[str] = Counter()
    for last in range(random.randint(1, 6), 150, 6):
        settings = replace(post.settings, prefix=f"{post.settings.prefix}-{last}")
        async with open_post(settings) as each:
            died_at[await one_life(each, last)] += 1
        await post.road.ask(
            "update postroad.task set status = 'cancelled', finished_at = now() where finished_at is null"
        )

    assert died_at.keys() >= {"beginning", "publishing", "replacing a stream"}, died_at


async def one_life(post: Post, last: int) -> str:
    """One relay that dies, another that finishes; returns what the first one was at."""
    mortal = Mortal(Relay(post.settings).run(), last, phase="beginning")
    relays = [asyncio.create_task(mortal.run())]

    async def reach(condition: Callable[[], Awaitable[bool]]) -> None:
        async def is_reached() -> bool:
            if relays[-1].done():
                assert len(relays) == 1, "only the first is mortal"
                relays.append(asyncio.create_task(Relay(post.settings).run()))
            return await condition()

        await until(is_reached)

    async def each_event_once() -> bool:
        counted = Counter(entry["event"] for entry in await post.entries("start"))
        return set(counted.values()) == {1}

    try:
        accepted = [await post.road.accept(FORK) for _ in range(2)]
        await reach(lambda: post.has(accepted))

        mortal.phase = "publishing"
        accepted += [await post.road.accept(FORK) for _ in range(2)]
        pages = [UUID(int=last << 64 | number) for number in range(PAGE + 20)]
        await post.append(*(Event("TaskCreated", task, FORK.name) for task in pages))
        await reach(post.is_caught_up)
        assert await post.has(accepted + pages)
        assert await each_event_once()

        mortal.phase = "replacing a stream"
        await post.client.delete(post.keys.stream(FORK.name, "start"))
        await reach(lambda: post.has(accepted))
        await reach(post.is_caught_up)
        assert await each_event_once()

        if mortal.died_at:
            await until(once(relays[0].done), seconds=5)
    finally:
        for task in relays:
            task.cancel()
        await asyncio.gather(*relays, return_exceptions=True)
    return mortal.died_at


@pytest.mark.timeout(300)
@ABRUPT
async def test_a_rebuild_may_die_wherever_it_waits(
    post: Post, quick: None, burial: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the streams in place nothing but the marker, set last, says whether all was asked for."""
    monkeypatch.setattr(_Session, "_lead", no_lock)
    accepted = [await post.road.accept(FORK) for _ in range(2)]
    async with relaying(post.settings):
        await post.receives(accepted)
        await post.caught_up()
    for last in itertools.count(random.randint(1, 2), 2):
        before = len(await post.entries("start"))
        await post.client.delete(post.keys.marker(0))
        mortal = Mortal(Relay(post.settings).run(), last, phase="rebuilding")
        relay = asyncio.create_task(mortal.run())
        await until(functools.partial(is_done_or, relay, post.is_caught_up))
        relay.cancel()
        await asyncio.gather(relay, return_exceptions=True)

        async with relaying(post.settings):
            await post.caught_up()
        assert await post.has(accepted, since=before), f"died at wait {last}"
        if not mortal.died_at:
            break
    assert last > 15


@ABRUPT
async def test_a_cancelled_sweep_ends_wherever_it_waits(post: Post, burial: None) -> None:
    async with relaying(post.settings):
        await post.caught_up()
    for last in range(random.randint(1, 2), 60, 2):
        sweep = Sweep(post.settings, post.clients, margin=timedelta(milliseconds=1))

        await asyncio.wait_for(asyncio.gather(Mortal(sweep.run(), last).run(), return_exceptions=True), 10)


async def is_done_or(relay: asyncio.Task[None], condition: Callable[[], Awaitable[bool]]) -> bool:
    return relay.done() or await condition()


# Losses of Redis.


@pytest.fixture
async def travelled(post: Post, quick: None) -> AsyncIterator[tuple[Post, list[UUID]]]:
    """A relay at work, and tasks that have got to various stages; with them, those that are ready at ``start``."""
    async with relaying(post.settings):
        yield post, await travel(post)


async def travel(post: Post) -> list[UUID]:
    await post.caught_up()
    tasks = [await post.road.accept(FORK) for _ in range(6)]
    started, met, completed, cancelled, dead, failed = tasks
    for task in (started, met, completed):
        await post.road.commit(task, "start", pipeline=FORK)
    for stage in ("left", "right"):
        await post.road.commit(met, stage, pipeline=FORK)
    for stage in ("left", "right", "meet", "arrive"):
        await post.road.commit(completed, stage, pipeline=FORK)
    await post.road.ask(
        "update postroad.task set status = 'cancelled', finished_at = now() where task_id = :task", task=cancelled
    )
    await post.road.commit(dead, "start", Reject("never"), pipeline=FORK)
    await post.road.commit(failed, "start", Retry("later", after=3600), pipeline=FORK)
    fresh = await post.road.accept(FORK)
    await post.caught_up()
    assert await post.tasks_at("start") == [*tasks, fresh]
    return [failed, fresh]


async def ready(post: Post) -> set[tuple[UUID, str]]:
    """What is ready to run, told in another way than the statement under test tells it."""
    rows = await post.road.ask("select task_id, status, stages_done from postroad.task")
    dead = {(task, stage) for task, stage in await post.road.ask("select task_id, stage from postroad.dead_letter")}
    return {
        (task, stage.name)
        for task, status, done in rows
        if status in ("pending", "in_progress", "failed")
        for stage in FORK.graph().values()
        if stage.name not in done and set(stage.after) <= set(done) and (task, stage.name) not in dead
    }


async def rebuilt(post: Post, reason: str) -> None:
    """Wait until all that is ready has been asked for and has arrived, and see that nothing else was."""
    wanted = await ready(post)

    async def is_rebuilt() -> bool:
        return set(await post.requests(reason)) >= wanted and await post.is_caught_up()

    await until(is_rebuilt)
    assert sorted(await post.requests(reason)) == sorted(wanted), "each once, and nothing else"
    for stage in FORK.graph():
        arrived = [task for type, task in await post.arrived(stage) if type == "StageRequested"]
        assert set(arrived) >= {task for task, name in wanted if name == stage}


async def test_a_marker_that_is_deleted_leads_to_a_rebuild(travelled: tuple[Post, list[UUID]]) -> None:
    post, at_start = travelled
    before = await post.entries("start")

    await post.client.delete(post.keys.marker(0))

    await rebuilt(post, "no marker")
    assert [entry["task"] for entry in (await post.entries("start"))[len(before) :]] == list(map(str, at_start))


@pytest.mark.parametrize("marker", ["", "nonsense", "12", "12:", ":end", "12:nonsense"])
async def test_a_marker_that_is_none_of_ours_leads_to_a_rebuild(
    marker: str, travelled: tuple[Post, list[UUID]]
) -> None:
    post, _ = travelled

    await post.client.set(post.keys.marker(0), marker)

    await rebuilt(post, "no marker")


@pytest.mark.parametrize("marker", ["7:end", "7:3", "9999999999999:end"])
async def test_a_marker_of_an_unknown_tick_leads_to_a_rebuild(marker: str, travelled: tuple[Post, list[UUID]]) -> None:
    post, _ = travelled

    await post.client.set(post.keys.marker(0), marker)

    await rebuilt(post, "its marker is of no tick of this server")


async def test_a_marker_that_went_back_leads_to_the_windows_since_then_and_no_rebuild(
    travelled: tuple[Post, list[UUID]],
) -> None:
    """As when Redis fails over to a replica that had not got everything."""
    post, _ = travelled
    old = await post.marker()
    before = await post.entries("start")
    again = [await post.road.accept(FORK) for _ in range(3)]
    await post.caught_up()

    await post.client.set(post.keys.marker(0), old)
    await until(lambda: has_twice(post, again))
    await post.caught_up()

    after = await post.entries("start")
    assert after[: len(before)] == before
    counted = Counter(entry["task"] for entry in after[len(before) :])
    assert counted == dict.fromkeys(map(str, again), 2), "what came since the old tick, and nothing else"
    assert not await post.road.ask(
        "select from postroad.outbox where type = 'StageRequested' and data ->> 'reason' <> 'last'"
    )


async def has_twice(post: Post, tasks: list[UUID]) -> bool:
    counted = Counter(await post.tasks_at("start"))
    return all(counted[task] >= 2 for task in tasks)


async def test_a_marker_that_went_back_under_traffic_loses_nothing(travelled: tuple[Post, list[UUID]]) -> None:
    post, _ = travelled
    accepted = []

    for _ in range(5):
        old = await post.marker()
        accepted += await asyncio.gather(*(post.road.accept(FORK) for _ in range(5)))
        await post.client.set(post.keys.marker(0), old)
        accepted += await asyncio.gather(*(post.road.accept(FORK) for _ in range(5)))

    await post.receives(accepted)
    await post.caught_up()


@pytest.mark.parametrize("stage", ["start", "left", "meet"])
async def test_a_stream_that_is_deleted_is_made_again_with_what_is_ready_there(
    stage: str, travelled: tuple[Post, list[UUID]]
) -> None:
    post, _ = travelled
    others = {name: await post.entries(name) for name in FORK.graph() if name != stage}

    await post.client.delete(post.keys.stream(FORK.name, stage))

    wanted = {task for task, name in await ready(post) if name == stage}
    await post.receives(wanted, stage)
    await post.caught_up()
    assert sorted(await post.tasks_at(stage)) == sorted(wanted), "each once, and nothing else"
    assert {name: await post.entries(name) for name in others} == others, "the others are left alone"
    groups: Any = await post.client.xinfo_groups(post.keys.stream(FORK.name, stage))
    assert [(group["name"], group["last-delivered-id"]) for group in groups] == [(group_name(FORK.name, stage), "0-0")]


async def test_a_group_that_is_destroyed_is_made_again_from_the_first_entry_on(
    travelled: tuple[Post, list[UUID]],
) -> None:
    post, _ = travelled
    stream, group = post.keys.stream(FORK.name, "start"), group_name(FORK.name, "start")
    before = await post.entries("start")
    await post.client.xreadgroup(group, "worker", {stream: ">"})

    await post.client.xgroup_destroy(stream, group)

    await until(lambda: has_group(post, "start"))
    await post.caught_up()
    answer: Any = await post.client.xreadgroup(group, "worker", {stream: ">"})
    delivered = [fields["task"] for entries in answer.values() for _, fields in entries]
    assert delivered[: len(before)] == [entry["task"] for entry in before]
    assert set(delivered) >= {str(task) for task, stage in await ready(post) if stage == "start"}


async def has_group(post: Post, stage: str) -> bool:
    groups: Any = await post.client.xinfo_groups(post.keys.stream(FORK.name, stage))
    return bool(groups)


async def test_a_stream_that_goes_while_events_are_published_loses_none(travelled: tuple[Post, list[UUID]]) -> None:
    post, _ = travelled
    accepted: list[UUID] = []

    for _ in range(5):
        accepted += await asyncio.gather(*(post.road.accept(FORK) for _ in range(5)))
        await post.client.delete(post.keys.stream(FORK.name, "start"))
        accepted += await asyncio.gather(*(post.road.accept(FORK) for _ in range(5)))

    await post.receives(accepted)
    await post.caught_up()


async def test_everything_that_is_open_comes_back_after_redis_was_emptied(lossy_post: Post, quick: None) -> None:
    async with relaying(lossy_post.settings):
        await travel(lossy_post)

        await lossy_post.client.flushall()

        await rebuilt(lossy_post, "no marker")
        assert await lossy_post.entries("arrive") == []


async def test_everything_that_is_open_comes_back_after_redis_lost_its_memory(
    lossy_post: Post, own_valkey: Valkey, quick: None
) -> None:
    async with relaying(lossy_post.settings):
        await travel(lossy_post)

        await asyncio.to_thread(own_valkey.kill)
        meanwhile = [await lossy_post.road.accept(FORK) for _ in range(10)]
        ticks = await lossy_post.road.ask("select max(tick) from postroad.tick")
        await until(lambda: has_ticked(lossy_post, ticks[0][0]))
        await asyncio.to_thread(own_valkey.start)
        await lossy_post.client.connection_pool.disconnect()

        await lossy_post.receives(meanwhile)
        await rebuilt(lossy_post, "no marker")


async def has_ticked(post: Post, last: int) -> bool:
    """True if the relay goes on making ticks, so that the backlog stays in small pieces."""
    await post.road.accept(FORK)
    ((newest,),) = await post.road.ask("select max(tick) from postroad.tick")
    return bool(newest > last)


async def test_what_redis_cannot_take_is_not_asked_for_again_and_again(lossy_post: Post, quick: None) -> None:
    """A replica, or a Redis that is full, lacks streams and takes none; meanwhile the outbox must not fill up."""
    accepted = [await lossy_post.road.accept(FORK) for _ in range(3)]
    for obstacle, reason in (
        (obstruct_by_role, "no marker"),
        (obstruct_by_memory, "no marker"),
        (obstruct_by_type, "no stream"),
    ):
        await lossy_post.client.flushall()
        async with relaying(lossy_post.settings):
            await lossy_post.caught_up()
            asked = len(await lossy_post.requests(reason))
            async with obstacle(lossy_post):
                await pauses(6)
                assert len(await lossy_post.requests(reason)) <= asked + 3, obstacle.__name__
            await lossy_post.receives(accepted)
            await lossy_post.caught_up()


async def test_what_redis_loses_at_once_is_not_asked_for_again_and_again(
    lossy_post: Post, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Redis that evicts loses what was restored as soon as it is there; meanwhile the outbox must not fill up."""
    # Who has been left alone for twice as long begins anew; a busy machine takes its time between two looks.
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.4)
    post = lossy_post
    accepted = [await post.road.accept(FORK) for _ in range(3)]
    async with relaying(post.settings):
        await post.receives(accepted)
        for lost, reason in ((post.keys.marker(0), "no marker"), (post.keys.stream(FORK.name, "start"), "no stream")):
            asked = len(await post.requests(reason))
            async with losing(post, lost):
                await pauses(6)
                assert len(await post.requests(reason)) <= asked + 8 * len(accepted), reason
            await post.receives(accepted)
            await post.caught_up()


@contextlib.asynccontextmanager
async def losing(post: Post, key: str) -> AsyncIterator[None]:
    """Redis loses ``key`` whenever it has it."""

    async def lose() -> None:
        while True:
            broker.heed_cancellation()
            await post.client.delete(key)

    task = asyncio.create_task(lose())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def pauses(several: int) -> None:
    """Wait until a relay has failed at Redis so many times."""
    failures = Failures()
    logging.getLogger(module.__name__).addHandler(failures)
    try:
        await until(once(lambda: failures.count >= several))
    finally:
        logging.getLogger(module.__name__).removeHandler(failures)


class Failures(logging.Handler):
    """Counts the pauses of relays."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.levelno >= logging.WARNING and "Redis" in record.getMessage()


@contextlib.asynccontextmanager
async def obstruct_by_role(post: Post) -> AsyncIterator[None]:
    await post.client.flushall()
    await post.client.replicaof("127.0.0.1", "1")
    yield
    await post.client.replicaof("NO", "ONE")


@contextlib.asynccontextmanager
async def obstruct_by_memory(post: Post) -> AsyncIterator[None]:
    await post.client.config_set("maxmemory", "1")
    await post.client.flushall()
    yield
    await post.client.config_set("maxmemory", "0")


@contextlib.asynccontextmanager
async def obstruct_by_type(post: Post) -> AsyncIterator[None]:
    stream = post.keys.stream(FORK.name, "start")
    await post.client.set(stream, "a string")
    yield
    await post.client.delete(stream)


# Losses on the way to Redis.


@pytest.fixture
async def proxy(settings: Settings) -> AsyncIterator[LossyProxy]:
    async with LossyProxy(settings.redis_url).serving() as serving:
        yield serving


async def test_a_page_whose_reply_was_lost_is_published_once(post: Post, proxy: LossyProxy, quick: None) -> None:
    accepted: list[UUID] = []
    async with relaying(replace(post.settings, redis_url=proxy.url)):
        await post.caught_up()
        for _ in range(5):
            proxy.lose(post.keys.stream(FORK.name, "start"))
            lost = proxy.lost
            accepted += await asyncio.gather(*(post.road.accept(FORK) for _ in range(5)))
            await post.caught_up()
            assert proxy.lost > lost

    positions = [entry["event"] for entry in await post.entries("start")]
    assert await post.has(accepted)
    assert len(positions) == len(set(positions)) == len(accepted)
    assert await post.requests("no marker") == []


async def test_a_relay_that_is_cancelled_while_it_publishes_has_published_once_or_not_at_all(
    post: Post, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with relaying(post.settings):
        await post.caught_up()
    evalsha, is_sent = Redis.evalsha, asyncio.Event()

    def send(self: Redis, *arguments: Any) -> Any:
        is_sent.set()
        return evalsha(self, *arguments)

    accepted: list[UUID] = []
    for wait in range(12):
        accepted += [await post.road.accept(FORK) for _ in range(3)]
        with monkeypatch.context() as watching:
            watching.setattr(Redis, "evalsha", send)
            watching.setattr(module, "INSPECT", 600)
            relay = asyncio.create_task(Relay(post.settings).run())
            for _ in range(2):  # an inspection comes first
                await is_sent.wait()
                is_sent.clear()
            for _ in range(wait):
                await asyncio.sleep(0)
            relay.cancel()
            await asyncio.gather(relay, return_exceptions=True)

    async with relaying(post.settings):
        await post.receives(accepted)
        await post.caught_up()
    positions = [entry["event"] for entry in await post.entries("start")]
    assert len(positions) == len(set(positions)) == len(accepted)


async def test_what_is_appended_while_redis_is_away_is_published_once_when_it_is_back(post: Post, quick: None) -> None:
    proxy = LossyProxy(post.settings.redis_url)
    async with contextlib.AsyncExitStack() as way:
        await way.enter_async_context(proxy.serving())
        settings = replace(post.settings, redis_url=proxy.url)
        async with relaying(settings):
            await post.caught_up()
            proxy.lose(post.keys.marker(0), times=10**9)  # as good as away
            accepted = [await post.road.accept(FORK) for _ in range(30)]
            ticks = await post.road.ask("select count(*) from postroad.tick")
            await until(lambda: has_ticks(post, ticks[0][0] + 2))
            proxy.lose("", times=0)

            await post.caught_up()

    positions = [entry["event"] for entry in await post.entries("start")]
    assert await post.has(accepted)
    assert len(positions) == len(set(positions))
    assert await post.requests("no marker") == []


async def has_ticks(post: Post, several: int) -> bool:
    await post.road.accept(FORK)
    ((count,),) = await post.road.ask("select count(*) from postroad.tick")
    return bool(count >= several)


# Losses of Postgres, and other servers' histories.


@pytest.fixture
async def own_post(settings: Settings, own_postgres: Postgres) -> AsyncIterator[Post]:
    """With a Postgres of its own, to be stopped and started."""
    upgrade(own_postgres.url)
    async with open_post(replace(settings, database_url=own_postgres.url), FORK) as opened:
        yield opened


@pytest.mark.parametrize("end", [Postgres.stop, Postgres.kill])
async def test_a_relay_outlives_its_postgres(
    end: Callable[[Postgres], None], own_post: Post, own_postgres: Postgres, quick: None
) -> None:
    accepted: list[UUID] = []
    async with relaying(own_post.settings) as relays:
        await own_post.caught_up()
        for _ in range(3):
            accepted += [await own_post.road.accept(FORK) for _ in range(10)]
            await asyncio.to_thread(end, own_postgres)
            await asyncio.to_thread(own_postgres.start)
            await own_post.road.engine.dispose()
            accepted += [await own_post.road.accept(FORK) for _ in range(10)]
            await own_post.receives(accepted)
        assert not relays[0].done()

    positions = [entry["event"] for entry in await own_post.entries("start")]
    assert len(positions) == len(set(positions)) == len(accepted)
    assert await own_post.requests("no marker") == []


async def test_a_relay_that_begins_before_its_postgres_waits_for_it(
    own_post: Post, own_postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    accepted = [await own_post.road.accept(FORK) for _ in range(3)]
    await asyncio.to_thread(own_postgres.stop)

    async with relaying(own_post.settings):
        await until(once(lambda: "waiting for Postgres at postgresql://postgres:***@" in caplog.text))
        await asyncio.to_thread(own_postgres.start)

        await own_post.receives(accepted)


@pytest.mark.parametrize("kind", ["of another server", "of the far future"])
async def test_a_history_of_another_server_leads_to_a_rebuild_and_to_no_end_of_ticks(
    kind: str, post: Post, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the restore of a dump: the last tick and some rows are of a server that had counted further."""
    async with relaying(post.settings):
        await travel(post)
    ((system, now),) = await post.road.ask(
        "select system_identifier, pg_snapshot_xmax(pg_current_snapshot())::text::bigint from pg_control_system()"
    )
    await post.road.ask(
        "insert into postroad.tick (tick, snapshot, system_identifier)"
        " select max(tick) + 1, cast(:snapshot as pg_snapshot), :system from postroad.tick",
        snapshot=f"{now + 10**6}:{now + 10**6}:",
        system=system + (kind == "of another server"),
    )
    restored = [UUID(int=number) for number in range(1, 4)]
    for ahead, task in zip((20, 30, 10**6 - 5), restored, strict=True):
        await post.road.ask(
            "insert into postroad.outbox (xid, task_id, pipeline, type)"
            " values (cast(cast(:xid as text) as xid8), :task, :pipeline, 'TaskCreated')",
            xid=str(now + ahead),
            task=task,
            pipeline=FORK.name,
        )
    before = await post.entries("start")
    looks = count_calls(monkeypatch, Ticks, "is_news")

    async with relaying(post.settings):
        await rebuilt(post, "another server")
        ticks = await post.road.ask("select count(*) from postroad.tick")
        looked = looks.count
        await until(once(lambda: looks.count > looked + 10))
        assert await post.road.ask("select count(*) from postroad.tick") == ticks, "nothing is news any more"

        accepted = []
        for _ in range(40):  # the server counts past the other's rows
            accepted.append(await post.road.accept(FORK))
        await post.receives(accepted)
        await post.caught_up()

    arrived = await post.tasks_at("start")
    assert not set(arrived) & set(restored)
    assert Counter(arrived[len(before) :])[accepted[0]] == 1
    ((reached,),) = await post.road.ask("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    assert reached > now + 30


async def test_a_history_of_another_server_is_not_forgotten_while_redis_is_away(post: Post, quick: None) -> None:
    async with relaying(post.settings):
        await travel(post)
    ((system, now),) = await post.road.ask(
        "select system_identifier, pg_snapshot_xmax(pg_current_snapshot())::text::bigint from pg_control_system()"
    )
    for step, is_theirs in ((1, True), (2, False)):
        await post.road.ask(
            "insert into postroad.tick (tick, snapshot, system_identifier)"
            " select max(tick) + 1, cast(:snapshot as pg_snapshot), :system from postroad.tick",
            snapshot=f"{now + 10**6}:{now + 10**6}:",
            system=system + is_theirs,
        )
        ((newest,),) = await post.road.ask("select max(tick) from postroad.tick")
        await post.client.set(post.keys.marker(0), f"{newest}:end")
        async with LossyProxy(post.settings.redis_url).serving() as proxy:
            proxy.lose(post.keys.marker(0), times=10**9)
            async with relaying(replace(post.settings, redis_url=proxy.url)):
                await until(once(lambda: proxy.lost > 3))
                proxy.lose("", times=0)
                await until(post.is_caught_up)

        wanted = sorted(await ready(post))
        asked = await post.requests("its marker is of no tick of this server") + await post.requests("another server")
        assert sorted(asked) == sorted(wanted * step)


# Waking up.


@pytest.fixture
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but a notification ends the relay's sleep."""
    monkeypatch.setattr(module, "POLL", 600)


async def test_a_relay_that_sleeps_is_woken_by_each_commit(post: Post, no_poll: None) -> None:
    async with relaying(post.settings):
        await post.caught_up()
        for _ in range(10):
            await until(post.is_asleep)

            task = await post.road.accept(FORK)

            await post.receives([task])


async def test_a_relay_that_falls_asleep_at_any_moment_misses_no_commit(post: Post, no_poll: None) -> None:
    """Commits come just when it is about to sleep: after its last look, and around the announcement."""
    dice = random.Random()
    async with relaying(post.settings):
        await post.caught_up()
        for _ in range(25):
            if dice.random() < 0.5:
                await until(post.is_asleep)
            else:
                await asyncio.sleep(module.LINGER + dice.uniform(-0.003, 0.003))
            tasks = await asyncio.gather(*(post.road.accept(FORK) for _ in range(dice.randint(1, 3))))

            await post.receives(tasks)


async def test_without_notifications_the_poll_finds_what_was_appended(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler that hands out connections by transaction."""
    monkeypatch.setattr(module, "POLL", 0.05)
    await post.road.ask("alter table postroad.outbox disable trigger wake_relay")
    async with relaying(post.settings):
        await post.caught_up()
        await until(post.is_asleep)

        task = await post.road.accept(FORK)

        await post.receives([task])


async def notifications(listener: psycopg.AsyncConnection[Any]) -> int:
    """How many came up to now: they come in the order of their commits, and one of our own marks the end.

    On another channel: it must not wake the relay.
    """
    await listener.execute('notify "the end"')
    count = 0
    async for notification in listener.notifies(timeout=20):
        if notification.channel == "the end":
            return count
        count += 1
    raise TimeoutError


async def test_only_a_relay_that_sleeps_is_notified(post: Post, no_poll: None, monkeypatch: pytest.MonkeyPatch) -> None:
    publish, is_held, is_busy = Shard.publish, asyncio.Event(), asyncio.Event()
    is_held.set()

    async def publish_when_let(self: Shard, *arguments: Any, **options: Any) -> Publication:
        is_busy.set()
        await is_held.wait()
        return await publish(self, *arguments, **options)

    monkeypatch.setattr(Shard, "publish", publish_when_let)
    async with await connect_psycopg(post.settings, application="test") as listener:
        await listener.execute('listen "postroad.outbox"')
        await listener.execute('listen "the end"')
        async with relaying(post.settings):
            await post.caught_up()
            await until(post.is_asleep)
            await notifications(listener)
            is_busy.clear()
            is_held.clear()

            accepted = [await post.road.accept(FORK)]
            await is_busy.wait()
            assert await notifications(listener) == 1, "it slept"

            accepted += [await post.road.accept(FORK) for _ in range(30)]
            assert await notifications(listener) == 0, "it is busy"

            is_held.set()
            await post.receives(accepted)
            await until(post.is_asleep)
            accepted.append(await post.road.accept(FORK))
            await post.receives(accepted)
            assert await notifications(listener) == 1, "it slept again"


async def test_a_relay_looks_once_more_when_others_have_to_notify_it(
    post: Post, no_poll: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag, between = _Session._flag, asyncio.Event()
    tasks: list[UUID] = []

    async def flag_after_a_commit(self: _Session, statement: str) -> bool:
        if statement == "try_sleep" and not between.is_set():
            tasks.append(await post.road.accept(FORK))  # it saw an awake relay
            between.set()
        return await flag(self, statement)

    async with relaying(post.settings):
        await post.caught_up()
        await until(post.is_asleep)
        monkeypatch.setattr(_Session, "_flag", flag_after_a_commit)
        waking = await post.road.accept(FORK)
        await between.wait()

        await post.receives([waking, *tasks])


async def test_who_appended_while_the_relay_was_awake_is_waited_for(post: Post, no_poll: None) -> None:
    """Its transaction is still open when the relay would sleep, and will not notify."""
    async with relaying(post.settings):
        await post.caught_up()
        await until(post.is_asleep)
        waking = await post.road.accept(FORK)
        await until(post.is_awake)
        async with post.road.engine.begin() as slow:
            await append(slow, Event("StageRequested", task := UUID(int=1), FORK.name, "start"))
            assert await post.counts_on_awake()
            await post.receives([waking])
            await asyncio.sleep(module.LINGER)  # until it would sleep
            assert not await post.is_asleep()

        await post.receives([task])
        await until(post.is_asleep)


# All at once.


async def test_nothing_that_is_open_is_lost_under_mixed_faults(
    settings: Settings, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two relays that die, replies that are lost, streams, groups and markers that go; three shards, with traffic."""
    monkeypatch.setattr(_Session, "_lead", no_lock)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 (shown if the test fails)
    dice = random.Random(seed)
    faults: Counter[str] = Counter()
    proxy = LossyProxy(settings.redis_url)
    async with (
        open_post(replace(settings, shards=3), FORK) as post,
        proxy.serving(),
        relaying(replace(post.settings, redis_url=proxy.url)) as relays,
    ):
        await post.caught_up()
        is_over = asyncio.Event()

        async def write() -> None:
            while not is_over.is_set():
                task = await post.road.accept(FORK)
                for stage in list(FORK.graph())[: dice.randint(0, 4)]:
                    await post.road.commit(task, stage, pipeline=FORK)

        async def break_something() -> None:
            stage, shard = dice.choice(list(FORK.graph())), dice.choice(list(post.keys.shards))
            stream, marker = post.keys.stream(FORK.name, stage), post.keys.marker(shard)
            fault = dice.choice(
                ["death", "death", "reply", "reply", "stream", "group", "marker", "unknown", "back", "foreign"]
            )
            faults[fault] += 1
            match fault:
                case "death":
                    relays[0].cancel()
                    await asyncio.gather(relays[0], return_exceptions=True)
                    relays[0] = asyncio.create_task(Relay(replace(post.settings, redis_url=proxy.url)).run())
                case "reply":
                    proxy.lose(marker, times=dice.randint(1, 3))
                case "stream":
                    await post.client.delete(stream)
                case "group" if await post.client.exists(stream):
                    await post.client.xgroup_destroy(stream, group_name(FORK.name, stage))
                case "marker":
                    await post.client.delete(marker)
                case "unknown":
                    await post.client.set(marker, "7:end")
                case "back":
                    rows = await post.road.ask("select tick from postroad.tick order by tick desc limit 9")
                    await post.client.set(marker, f"{rows[-1][0]}:end")
                case "foreign" if await post.client.exists(stream):
                    await post.client.xadd(stream, {"of": "somebody else"}, nomkstream=True)

        relays.append(asyncio.create_task(Relay(replace(post.settings, redis_url=proxy.url)).run()))
        async with asyncio.TaskGroup() as group:
            writers = [group.create_task(write()) for _ in range(2)]
            for _ in range(60):
                await break_something()
                await asyncio.sleep(dice.uniform(0, 0.08))
            is_over.set()
            await asyncio.gather(*writers)
        proxy.lose("", times=0)

        wanted = await ready(post)
        for stage in FORK.graph():
            await post.receives((task for task, name in wanted if name == stage), stage)
        await post.caught_up()
        ((ticks,),) = await post.road.ask("select count(*) from postroad.tick")
        assert not any(relay.done() for relay in relays)

    assert len(wanted) > 20
    assert ticks > 20
    assert len(faults) > 6
