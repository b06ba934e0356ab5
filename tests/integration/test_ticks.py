"""Windows between ticks: each committed event is in exactly one, whatever the transactions did meanwhile."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, aclosing
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from psycopg.pq import TransactionStatus

from postroad import Settings
from postroad.core.database import Statements, connect_psycopg
from postroad.outbox.ticks import PAGE, Appended, Tick, Ticks, Window

SQL = Statements("postroad.outbox", "postroad")

Session = psycopg.AsyncConnection[Any]
Open = Callable[[], Awaitable[Session]]

SUBTRANSACTIONS = """
create function subtransactions(kept uuid[], undone uuid[]) returns void language plpgsql as $$
declare
    id uuid;
begin
    -- Each of these blocks is a subtransaction. Past 64 of them other sessions cannot see whose they are in memory.
    foreach id in array kept || undone loop
        begin
            insert into postroad.outbox (task_id, pipeline, type) values (id, 'road', 'TaskCreated');
            if id = any (undone) then
                raise division_by_zero;
            end if;
        exception when division_by_zero then
            null;
        end;
    end loop;
end $$
"""


@pytest.fixture
async def open_session(settings: Settings) -> AsyncIterator[Open]:
    """Opens connections in autocommit, and closes them after the test."""
    async with AsyncExitStack() as stack:

        async def open_session() -> Session:
            connection = await connect_psycopg(settings, application="test")
            stack.push_async_callback(connection.close)
            return connection

        yield open_session


@pytest.fixture
async def session(open_session: Open) -> Session:
    return await open_session()


@pytest.fixture
async def ticks(open_session: Open) -> Ticks:
    return Ticks(await open_session(), "postroad")


async def append(session: Session, *tasks: UUID, type: str = "TaskCreated") -> None:
    """Append an event about each of ``tasks``; the id of the task serves as the name of the event."""
    several = len(tasks)
    await session.execute(
        SQL["append"],
        {
            "task_id": list(tasks),
            "pipeline": ["road"] * several,
            "type": [type] * several,
            "stage": [None] * several,
            "data": ["{}"] * several,
            "traceparent": [None] * several,
        },
    )


async def make(ticks: Ticks) -> Tick:
    tick = await ticks.make()
    assert tick is not None
    return tick


async def last(ticks: Ticks) -> Tick:
    tick, is_ours = await ticks.last()
    assert is_ours
    return tick


async def windows_after(ticks: Ticks, tick: int) -> list[Window]:
    found: list[Window] = []
    while more := await ticks.windows(found[-1].tick if found else tick):
        found += more
    return found


async def read(ticks: Ticks, windows: Iterable[Window]) -> list[UUID]:
    """The events of ``windows`` in the order in which they would be published."""
    return [event.task_id for window in windows async for page in ticks.pages(window) for event in page]


async def scalar(session: Session, statement: str, **parameters: Any) -> Any:
    row = await (await session.execute(statement.encode(), parameters or None)).fetchone()
    return row[0] if row else None


async def until(session: Session, condition: str) -> None:
    while not await scalar(session, condition):  # noqa: ASYNC110 (only the server can tell)
        await asyncio.sleep(0.001)


# The property, step by step: Hypothesis chooses who does what next.


class Writer:
    """One session as the model sees it: the events of each level of savepoints, outermost first."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.levels: list[list[UUID]] = []

    async def begin(self) -> None:
        if not self.levels:
            await self.session.execute("begin")
            self.levels.append([])

    def events(self) -> list[UUID]:
        return [event for level in self.levels for event in level]


class Road:
    """Writers, ticks, and what must be true of them."""

    def __init__(self, writers: list[Writer], ticks: Ticks, begin: Tick) -> None:
        self.writers = writers
        self.ticks = ticks
        self.last = begin
        self.committed: list[UUID] = []
        self.covered = 0
        self.committed_before: dict[UUID, int] = {}
        self.prepared: dict[str, list[UUID]] = {}
        self.published: list[UUID] = []
        self.read_up_to = begin.tick

    def fresh(self, several: int) -> list[UUID]:
        """Names of events to be appended now; whatever is committed by now may be their cause."""
        events = [uuid4() for _ in range(several)]
        self.committed_before |= dict.fromkeys(events, len(self.committed))
        return events

    async def append(self, writer: Writer, several: int) -> None:
        await writer.begin()
        events = self.fresh(several)
        await append(writer.session, *events)
        writer.levels[-1] += events

    async def append_in_subtransactions(self, writer: Writer, several: int) -> None:
        await writer.begin()
        events = self.fresh(several + 70)
        await writer.session.execute("select subtransactions(%s, %s)", (events[:several], events[several:]))
        writer.levels[-1] += events[:several]

    async def savepoint(self, writer: Writer, _: int) -> None:
        await writer.begin()
        await writer.session.execute(f"savepoint level_{len(writer.levels)}".encode())
        writer.levels.append([])

    async def roll_back_to(self, writer: Writer, level: int) -> None:
        if level < len(writer.levels):
            await writer.session.execute(f"rollback to level_{level}".encode())
            del writer.levels[level + 1 :]
            writer.levels[level] = []

    async def release(self, writer: Writer, level: int) -> None:
        if level < len(writer.levels):
            await writer.session.execute(f"release level_{level}".encode())
            writer.levels[level - 1] += [event for each in writer.levels[level:] for event in each]
            del writer.levels[level:]

    async def commit(self, writer: Writer, _: int) -> None:
        await writer.session.execute("commit")
        self.committed += writer.events()
        writer.levels = []

    async def roll_back(self, writer: Writer, _: int) -> None:
        await writer.session.execute("rollback")
        writer.levels = []

    async def prepare(self, writer: Writer, _: int) -> None:
        if writer.levels:
            name = f"test-{uuid4().hex}"
            await writer.session.execute(f"prepare transaction '{name}'".encode())
            self.prepared[name] = writer.events()
            writer.levels = []

    async def commit_prepared(self, writer: Writer, _: int) -> None:
        if not writer.levels and self.prepared:
            name, events = self.prepared.popitem()
            await writer.session.execute(f"commit prepared '{name}'".encode())
            self.committed += events

    async def roll_back_prepared(self, writer: Writer, _: int) -> None:
        if not writer.levels and self.prepared:
            name, _events = self.prepared.popitem()
            await writer.session.execute(f"rollback prepared '{name}'".encode())

    async def tick(self, _: Writer, __: int) -> None:
        is_news = await self.ticks.is_news(self.last)
        assert is_news == (self.covered < len(self.committed)), "the peek sees what no tick covers, and nothing else"
        tick = await make(self.ticks)
        assert tick.tick > self.last.tick
        self.last, self.covered = tick, len(self.committed)

    async def read(self, _: Writer, __: int) -> None:
        windows = await windows_after(self.ticks, self.read_up_to)
        self.published += await read(self.ticks, windows)
        self.read_up_to = windows[-1].tick if windows else self.read_up_to
        assert set(self.published) == set(self.committed[: self.covered])

    async def finish(self, *, commit: bool) -> None:
        for writer in self.writers:
            await (self.commit if commit else self.roll_back)(writer, 0)
        while self.prepared:
            await (self.commit_prepared if commit else self.roll_back_prepared)(self.writers[0], 0)


STEPS = [
    (Road.append, 8),
    (Road.append_in_subtransactions, 1),
    (Road.savepoint, 2),
    (Road.roll_back_to, 2),
    (Road.release, 1),
    (Road.commit, 4),
    (Road.roll_back, 2),
    (Road.prepare, 1),
    (Road.commit_prepared, 1),
    (Road.roll_back_prepared, 1),
    (Road.tick, 3),
    (Road.read, 2),
]
"""What can happen next, and how often."""

steps = st.lists(
    st.tuples(
        st.sampled_from([step for step, often in STEPS for _ in range(often)]), st.integers(0, 2), st.integers(1, 3)
    ),
    min_size=20,
    max_size=60,
)


@pytest.fixture
async def writers(open_session: Open) -> list[Writer]:
    writers = [Writer(await open_session()) for _ in range(3)]
    await writers[0].session.execute(SUBTRANSACTIONS)
    if await scalar(writers[0].session, "show max_prepared_transactions") == "0":
        pytest.skip("this server takes no prepared transactions")
    return writers


@hypothesis_settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=steps, commit_what_is_open=st.booleans())
async def test_each_committed_event_is_in_one_window_after_its_causes_whatever_the_order_of_steps(
    writers: list[Writer], ticks: Ticks, steps: list[tuple[Any, int, int]], commit_what_is_open: bool
) -> None:
    begin = await make(ticks)
    road = Road(writers, ticks, begin)
    try:
        for step, writer, number in steps:
            await step(road, writers[writer], number)
        await road.tick(writers[0], 0)
    finally:
        await road.finish(commit=commit_what_is_open)
    await road.tick(writers[0], 0)
    await road.read(writers[0], 0)

    assert Counter(road.published) == Counter(road.committed)
    place = {event: number for number, event in enumerate(road.published)}
    for event, number in place.items():
        causes = road.committed[: road.committed_before[event]]
        assert all(place[cause] < number for cause in causes)
    assert await read(ticks, await windows_after(ticks, begin.tick)) == road.published, "however late they are read"


# The property under real concurrency: the order of steps is the machine's.


class Writing:
    """A writer at full speed: every transaction looks at what others have committed, then appends."""

    def __init__(self, session: Session, dice: random.Random) -> None:
        self.session = session
        self.dice = dice
        self.committed: list[UUID] = []
        self.undone: list[UUID] = []
        self.causes: dict[UUID, list[UUID]] = {}

    async def run(self, transactions: int) -> None:
        for _ in range(transactions):
            kept: list[UUID] = []
            await self.session.execute("begin")
            await self.append(kept)
            for _ in range(self.dice.choice((0, 0, 0, 1, 3))):
                await self.within_savepoint(kept)
            if self.dice.random() < 0.04:
                await self.within_subtransactions(kept)
            if self.dice.random() < 0.2:
                await asyncio.sleep(self.dice.uniform(0, 0.05))
            if self.dice.random() < 0.3:
                await self.append(kept)
            await self.end(kept)

    async def append(self, kept: list[UUID]) -> None:
        seen = await self.session.execute("select task_id from postroad.outbox order by position desc limit 5")
        causes = [row[0] for row in await seen.fetchall()]
        events = [uuid4() for _ in range(self.dice.randint(1, 3))]
        self.causes |= dict.fromkeys(events, causes)
        await append(self.session, *events)
        kept += events

    async def within_savepoint(self, kept: list[UUID]) -> None:
        events: list[UUID] = []
        await self.session.execute("savepoint within")
        await self.append(events)
        if self.dice.random() < 0.5:
            await self.session.execute("rollback to within")
            self.undone += events
        else:
            kept += events

    async def within_subtransactions(self, kept: list[UUID]) -> None:
        events = [uuid4() for _ in range(80)]
        await self.session.execute("select subtransactions(%s, %s)", (events[:10], events[10:]))
        kept += events[:10]
        self.undone += events[10:]

    async def end(self, kept: list[UUID]) -> None:
        is_kept = self.dice.random() < 0.7
        end = "commit" if is_kept else "rollback"
        if self.dice.random() < 0.1:
            name = f"test-{uuid4().hex}"
            await self.session.execute(f"prepare transaction '{name}'".encode())
            await asyncio.sleep(self.dice.uniform(0, 0.02))
            end = f"{end} prepared '{name}'"
        await self.session.execute(end.encode())
        (self.committed if is_kept else self.undone).extend(kept)


async def test_each_committed_event_is_in_one_window_after_its_causes_under_concurrent_writers_and_tickers(
    writers: list[Writer], open_session: Open
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 (shown if the test fails)
    dice = random.Random(seed)
    writing = [Writing(await open_session(), random.Random(dice.random())) for _ in range(6)]
    tickers = [Ticks(await open_session(), "postroad") for _ in range(2)]
    reader = Ticks(await open_session(), "postroad")
    begin = await last(reader)
    is_over = asyncio.Event()
    published: list[UUID] = []
    made: list[Tick] = []

    async def tick(ticks: Ticks) -> None:
        before = begin
        while not is_over.is_set():
            if await ticks.is_news(before):
                before = await make(ticks)
                made.append(before)
            await asyncio.sleep(dice.uniform(0, 0.004))

    async def read_along() -> int:
        tick = begin.tick
        while True:
            was_over = is_over.is_set()
            for window in await windows_after(reader, tick):
                published.extend(await read(reader, [window]))
                tick = window.tick
            if was_over:
                return tick
            await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read_along())
        ticking = [group.create_task(tick(ticks)) for ticks in tickers]
        await asyncio.gather(*(each.run(60) for each in writing))
        is_over.set()
        await asyncio.gather(*ticking)
    await make(reader)
    published += await read(reader, await windows_after(reader, reading.result()))

    committed = [event for each in writing for event in each.committed]
    assert Counter(published) == Counter(committed)
    assert not set(published) & {event for each in writing for event in each.undone}
    place = {event: number for number, event in enumerate(published)}
    for event, causes in [pair for each in writing for pair in each.causes.items() if pair[0] in place]:
        # Its own transaction's events may be among the causes, and may have been undone.
        assert all(place[cause] < place[event] for cause in causes if cause in place)
    assert await read(reader, await windows_after(reader, begin.tick)) == published
    assert len(made) > 30, "many windows"
    late = (
        "select count(*) from postroad.outbox join postroad.tick on xid = any (array(select pg_snapshot_xip(snapshot)))"
    )
    assert await scalar(writers[0].session, late) > 10, "and transactions that were open while ticks were made"


# Single situations.


async def test_nothing_is_news_in_a_fresh_outbox(ticks: Ticks) -> None:
    tick = await last(ticks)

    assert tick == Tick(0, "3:3:")
    assert not await ticks.is_news(tick)
    assert await ticks.windows(0) == []


async def test_a_late_commit_is_news_again(ticks: Ticks, session: Session, open_session: Open) -> None:
    late, early = uuid4(), uuid4()
    slow = await open_session()
    await slow.execute("begin")
    await append(slow, late)
    await append(session, early)
    first = await make(ticks)
    assert not await ticks.is_news(first), "what is open is no news, although its xid is the lower one"

    await slow.execute("commit")

    assert await ticks.is_news(first)
    second = await make(ticks)
    assert not await ticks.is_news(second)
    windows = await ticks.windows(0)
    assert [window.tick for window in windows] == [first.tick, second.tick]
    assert [await read(ticks, [window]) for window in windows] == [[early], [late]]


async def test_within_a_window_an_effect_comes_after_its_cause_although_its_transaction_began_before(
    ticks: Ticks, session: Session, open_session: Open
) -> None:
    slow, early, cause, effect = await open_session(), uuid4(), uuid4(), uuid4()
    await slow.execute("begin")
    await append(slow, early)
    await append(session, cause)
    await append(slow, effect)
    await slow.execute("commit")
    await make(ticks)

    assert await read(ticks, await ticks.windows(0)) == [early, cause, effect]


async def test_what_is_rolled_back_is_no_news(ticks: Ticks, session: Session) -> None:
    first = await make(ticks)
    await session.execute("begin")
    await append(session, uuid4())
    assert not await ticks.is_news(first)
    second = await make(ticks)
    await session.execute("rollback")

    assert not await ticks.is_news(first)
    assert not await ticks.is_news(second)


async def test_transactions_that_append_nothing_are_no_news(ticks: Ticks, session: Session) -> None:
    await session.execute("create table other (number int)")
    first = await make(ticks)

    for _ in range(10):
        await session.execute("insert into other values (1)")

    assert not await ticks.is_news(first)


async def test_looking_for_news_takes_no_transaction_id(ticks: Ticks, session: Session) -> None:
    tick = await make(ticks)
    before = int(await scalar(session, "select pg_snapshot_xmax(pg_current_snapshot())::text"))

    for _ in range(20):
        await ticks.is_news(tick)
        await ticks.windows(0)

    after = int(await scalar(session, "select pg_snapshot_xmax(pg_current_snapshot())::text"))
    assert after - before < 20, "others on this server may have taken some"


async def test_ticks_are_numbered_by_the_clock_and_never_go_back(ticks: Ticks, session: Session) -> None:
    now = int(await scalar(session, "select (extract(epoch from clock_timestamp()) * 1000)::bigint"))
    first = await make(ticks)
    assert now <= first.tick <= now + 60_000

    await session.execute(
        "insert into postroad.tick (tick, snapshot, system_identifier)"
        " select %s, pg_current_snapshot(), system_identifier from pg_control_system()",
        (now + 10**9,),
    )

    assert (await make(ticks)).tick == now + 10**9 + 1
    assert (await make(ticks)).tick == now + 10**9 + 2


async def test_two_tickers_wait_for_each_other(ticks: Ticks, session: Session, open_session: Open) -> None:
    await session.execute("begin")
    await session.execute(SQL["lock_ticks"])
    await append(other := await open_session(), before := uuid4())

    making = asyncio.create_task(make(ticks))
    await until(other, "select exists (select from pg_locks where locktype = 'advisory' and not granted)")
    await append(other, meanwhile := uuid4())
    assert not making.done()
    await session.execute("commit")

    await making
    assert await read(ticks, await ticks.windows(0)) == [before, meanwhile], "its snapshot is younger than the lock"


async def test_a_tick_is_on_disk_before_anybody_hears_of_it(ticks: Ticks, session: Session) -> None:
    """Else a crash could take back an event that is in a stream already."""
    await session.execute(
        """
        create table seen (setting text);
        create function look() returns trigger language plpgsql as $$
        begin
            insert into seen values (current_setting('synchronous_commit'));
            return null;
        end $$;
        create trigger look after insert on postroad.tick execute function look();
        """
    )
    await ticks._connection.execute("set synchronous_commit = off")

    await ticks.make()
    await ticks.adopt()

    assert await (await session.execute("select * from seen")).fetchall() == [("on",), ("on",)]


async def test_windows_come_in_portions_from_any_tick_on(ticks: Ticks, session: Session) -> None:
    made = []
    for _ in range(20):
        await append(session, uuid4())
        made.append((await make(ticks)).tick)

    assert [window.tick for window in await ticks.windows(0)] == made[:16]
    assert [window.tick for window in await ticks.windows(0, limit=3)] == made[:3]
    assert [window.tick for window in await ticks.windows(made[15])] == made[16:]
    assert [window.tick for window in await ticks.windows(made[15], inclusive=True)] == made[15:]
    assert [window.tick for window in await ticks.windows(made[15] - 1)] == made[15:]
    assert await ticks.windows(made[-1]) == []
    whole = await ticks.windows(0, limit=100)
    assert all(before.snapshot == after.before for before, after in pairwise(whole))


async def test_only_events_that_somebody_may_wait_for_are_read(ticks: Ticks, session: Session) -> None:
    awaited = {name: uuid4() for name in ("TaskCreated", "StageCompleted", "StageRequested")}
    for name in ("HostReserved", "TaskCompleted", "TaskFailed", "StageFailed", "StageSnoozed", "StageDead"):
        await append(session, uuid4(), type=name)
    for name, task in awaited.items():
        await append(session, task, type=name)
    await make(ticks)

    assert await read(ticks, await ticks.windows(0)) == list(awaited.values())


async def test_an_event_is_read_with_what_the_relay_has_to_know(ticks: Ticks, session: Session) -> None:
    task = uuid4()
    cursor = await session.execute(
        "insert into postroad.outbox (task_id, pipeline, type, stage, data, traceparent)"
        " values (%s, 'road', 'StageCompleted', 'fork', '{\"large\": 1}', '00-1-2-00')"
        " returning position, (extract(epoch from occurred_at) * 1000)::bigint",
        (task,),
    )
    row = await cursor.fetchone()
    assert row is not None
    await make(ticks)

    (window,) = await ticks.windows(0)
    pages = [page async for page in ticks.pages(window)]

    assert pages == [[Appended(row[0], task, "road", "StageCompleted", "fork", "00-1-2-00", row[1])]]


@pytest.mark.parametrize("several", [0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE])
async def test_the_last_page_is_a_short_one(several: int, ticks: Ticks, session: Session) -> None:
    if several:
        await append(session, *(uuid4() for _ in range(several)))
    await make(ticks)

    (window,) = await ticks.windows(0)
    sizes = [len(page) async for page in ticks.pages(window)]

    assert sum(sizes) == several
    assert sizes[:-1] == [PAGE] * (several // PAGE)
    assert sizes[-1] < PAGE


async def test_a_giant_window_is_read_in_pages_from_any_position_on(
    ticks: Ticks, session: Session, open_session: Open
) -> None:
    slow = await open_session()
    late, expected = [uuid4() for _ in range(300)], []
    await slow.execute("begin")
    await append(slow, *late[:100])
    begin = await make(ticks)
    for number in range(50):
        await append(session, *(several := [uuid4() for _ in range(94)]))
        expected += several
        await append(session, uuid4(), type="HostReserved")
        if number == 25:
            await append(slow, *late[100:])
            expected += late[100:]
    expected = late[:100] + expected
    await slow.execute("commit")
    await make(ticks)
    assert len(expected) == 5_000

    (window,) = await ticks.windows(begin.tick)
    whole = [page async for page in ticks.pages(window)]
    events = [event for page in whole for event in page]

    assert [event.task_id for event in events] == expected
    assert [len(page) for page in whole] == [PAGE] * 10 + [0]
    positions = [event.position for event in events]
    assert positions == sorted(positions)
    for start in (0, 1, 99, 100, PAGE - 1, PAGE, PAGE + 1, 2_500, 4_499, 4_500, 4_501, 4_998, 4_999):
        resumed = [page async for page in ticks.pages(window, positions[start])]
        assert [event for page in resumed for event in page] == events[start + 1 :], f"after number {start}"
        assert len(resumed[-1]) < PAGE
    gap = next(p for p in range(positions[0], positions[-1]) if p not in set(positions))
    resumed = [page async for page in ticks.pages(window, gap)]
    assert [event for page in resumed for event in page] == [event for event in events if event.position > gap]
    assert [page async for page in ticks.pages(window, positions[-1])] == [[]]


async def test_reading_may_be_given_up_within_a_window(ticks: Ticks, session: Session) -> None:
    await append(session, *(uuid4() for _ in range(3 * PAGE)))
    await make(ticks)
    (window,) = await ticks.windows(0)

    for pages in (1, 2, 3):
        async with aclosing(ticks.pages(window)) as reading:
            for _ in range(pages):
                await anext(reading)
        assert ticks._connection.info.transaction_status == TransactionStatus.IDLE
        assert len([page async for page in ticks.pages(window)]) == 4


async def test_events_that_are_appended_while_a_window_is_read_are_not_in_it(ticks: Ticks, session: Session) -> None:
    await append(session, *(uuid4() for _ in range(2 * PAGE)))
    await make(ticks)
    (window,) = await ticks.windows(0)

    seen = 0
    async for page in ticks.pages(window):
        seen += len(page)
        await append(session, uuid4())
        await make(Ticks(session, "postroad"))

    assert seen == 2 * PAGE


# The plans.


def leaves_scanned(plan: dict[str, Any]) -> list[tuple[str, str]]:
    """Which scans a plan makes of which leaves of the outbox, or of the ticks."""
    mine = [(plan["Node Type"], plan.get("Index Name") or plan.get("Relation Name", ""))]
    below = [scan for child in plan.get("Plans", []) for scan in leaves_scanned(child)]
    return [scan for scan in mine + below if "outbox" in scan[1] or "tick" in scan[1]]


async def explain(session: Session, statement: str, **parameters: Any) -> tuple[list[tuple[str, str]], int]:
    """The scans of a statement, and the pages that it read."""
    explained = await scalar(
        session, f"explain (analyze, buffers, timing off, format json) {SQL[statement]}", **parameters
    )
    plan = explained[0]["Plan"]
    return leaves_scanned(plan), plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


@pytest.mark.parametrize("statistics", ["of an empty table", "of the old rows"])
async def test_hot_statements_read_the_index_among_many_old_rows_with_stale_statistics(
    statistics: str, ticks: Ticks, session: Session, open_session: Open
) -> None:
    for slot in range(8):
        await session.execute(f"alter table postroad.outbox_{slot} set (autovacuum_enabled = off)".encode())
    await session.execute("alter table postroad.tick set (autovacuum_enabled = off)")
    await session.execute("analyze postroad.outbox, postroad.tick")
    await session.execute(
        """
        insert into postroad.outbox (slot, xid, task_id, pipeline, type)
        select number / 25000, (3 + number / 500)::text::xid8, gen_random_uuid(), 'road', 'TaskCreated'
          from generate_series(0, 199999) as number
        """
    )
    await session.execute(
        "insert into postroad.tick (tick, snapshot, system_identifier) select number, '403:403:', system_identifier"
        "  from generate_series(1, 50000) as number, pg_control_system()"
    )
    if statistics == "of the old rows":
        await session.execute("vacuum analyze postroad.outbox, postroad.tick")
    slow = await open_session()
    await slow.execute("begin")
    await append(slow, *(uuid4() for _ in range(100)))
    await append(session, uuid4())
    before = await make(ticks)
    for _ in range(10):
        await append(session, *(uuid4() for _ in range(100)))
    await slow.execute("commit")
    after = await make(ticks)
    await session.execute("set plan_cache_mode = force_custom_plan")
    window = {"before": before.snapshot, "snapshot": after.snapshot, "position": 0}
    hot: list[tuple[str, dict[str, Any]]] = [
        ("peek", {"snapshot": after.snapshot}),
        ("peek", {"snapshot": before.snapshot}),
        ("window", window | {"limit": PAGE}),
        ("window", window | {"limit": None}),
        ("windows", {"tick": before.tick, "inclusive": False, "limit": 16}),
        ("windows", {"tick": before.tick, "inclusive": True, "limit": 16}),
        ("last_tick", {}),
        ("known_tick", {"tick": before.tick}),
    ]

    for statement, parameters in hot:
        scans, pages = await explain(session, statement, **parameters)

        assert not [scan for scan in scans if scan[0] == "Seq Scan"], f"{statement}: {scans}"
        assert {name.partition("_xid")[0] for _, name in scans if "xid_idx" in name} == (
            {f"outbox_{slot}" for slot in range(8)} if statement in ("peek", "window") else set()
        )
        assert pages < 400, f"{statement} read {pages} pages"


# Another server's history.

FOREIGN = "insert into postroad.tick (tick, snapshot, system_identifier) values (%(tick)s, %(snapshot)s, %(system)s)"


async def system(session: Session) -> int:
    return int(await scalar(session, "select system_identifier from pg_control_system()"))


async def xmax(session: Session) -> int:
    return int(await scalar(session, "select pg_snapshot_xmax(pg_current_snapshot())::text"))


@pytest.mark.parametrize("kind", ["of another server", "of the far future"])
async def test_nobody_goes_on_from_a_tick_that_this_server_cannot_have_made(
    kind: str, ticks: Ticks, session: Session
) -> None:
    tick = (await make(ticks)).tick + 1_000_000
    future = await xmax(session) + 1_000_000
    is_ours = kind == "of the far future"
    await session.execute(
        FOREIGN,
        {
            "tick": tick,
            "snapshot": f"{future}:{future}:" if is_ours else "3:3:",
            "system": await system(session) + (not is_ours),
        },
    )

    found, goes_on = await ticks.last()
    assert (found.tick, goes_on) == (tick, False)
    assert await ticks.make() is None

    adopted = await ticks.adopt()

    assert adopted.tick == tick + 1
    assert await ticks.last() == (adopted, True)
    assert not await ticks.is_news(adopted)
    await append(session, event := uuid4())
    assert await ticks.is_news(adopted)
    await make(ticks)
    assert await read(ticks, await ticks.windows(adopted.tick)) == [event]


async def test_a_tick_is_known_if_this_server_made_it(ticks: Ticks, session: Session) -> None:
    mine = await make(ticks)
    foreign = {"tick": mine.tick + 1, "snapshot": "3:3:", "system": await system(session) + 1}
    await session.execute(FOREIGN, foreign)
    future = await xmax(session) + 1_000_000
    ahead = {"tick": mine.tick + 2, "snapshot": f"{future}:{future}:", "system": await system(session)}
    await session.execute(FOREIGN, ahead)

    assert await ticks.is_known(mine.tick)
    assert await ticks.is_known(0)
    assert not await ticks.is_known(mine.tick - 1)
    assert not await ticks.is_known(mine.tick + 1)
    assert not await ticks.is_known(mine.tick + 2), "it leads into a future that this server has not seen"
    assert not await ticks.is_known(mine.tick + 3)


async def test_without_any_tick_one_begins(ticks: Ticks, session: Session) -> None:
    await session.execute("delete from postroad.tick")
    await append(session, uuid4())

    begun = await last(ticks)

    assert begun.tick > 0
    assert not await ticks.is_news(begun), "what was before is for a rebuild"


async def test_rows_with_ids_that_this_server_has_not_reached_are_never_news(
    ticks: Ticks, session: Session, open_session: Open
) -> None:
    """They came with a dump from a server that had counted further; one day this one gets there too."""
    restored = (
        "insert into postroad.outbox (xid, task_id, pipeline, type) values (%s::text::xid8, %s, 'road', 'TaskCreated')"
    )
    future = await xmax(session) + 30
    for ahead in (0, 5, 1_000_000):
        await session.execute(restored, (future + ahead, uuid4()))
    running = await open_session()
    await running.execute("begin")
    await append(running, real := uuid4())
    # The server counts, and a transaction runs that bears the number of one of the other server's.
    await session.execute(restored, (await scalar(running, "select pg_current_xact_id()::text"), uuid4()))

    adopted = await ticks.adopt()
    assert not await ticks.is_news(adopted), "or there would be ticks without end while that transaction is open"

    await running.execute("commit")
    while await xmax(session) <= future + 10:
        await session.execute("select pg_current_xact_id()")
    await append(session, later := uuid4())
    tick = await make(ticks)
    assert not await ticks.is_news(tick)
    assert await read(ticks, await ticks.windows(adopted.tick)) == [real, later]


async def test_rows_ahead_do_not_make_ticks_without_end_before_they_are_adopted(ticks: Ticks, session: Session) -> None:
    await session.execute(
        "insert into postroad.outbox (xid, task_id, pipeline, type) values (%s::text::xid8, %s, 'road', 'TaskCreated')",
        (await xmax(session) + 1_000_000, uuid4()),
    )

    tick = await make(ticks)

    assert not await ticks.is_news(tick)
