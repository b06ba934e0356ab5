"""Appending events: in whose transaction, in which order, and what is refused before anything is written."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from postroad import Event, EventType, Settings, append
from postroad.core.database import in_schema, make_engine, sqlalchemy_url
from postroad.core.errors import UnstorableError
from postroad.migrations import upgrade

TASK = uuid4()


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    engine = create_engine(sqlalchemy_url(database))
    yield engine
    engine.dispose()


@pytest.fixture
async def async_engine(settings: Settings) -> AsyncIterator[AsyncEngine]:
    engine = make_engine(settings, application="test", pool=2)
    yield engine
    await engine.dispose()


class Base(DeclarativeBase): ...


class Host(Base):
    """A table of the author's."""

    __tablename__ = "host"
    name: Mapped[str] = mapped_column(primary_key=True)


def event(number: int, **data: Any) -> Event:
    return Event("HostReserved", TASK, "road", "allocate", {"number": number} | data)


def outbox(database: str, schema: str = "postroad") -> list[tuple[Any, ...]]:
    """What is in the outbox, by position, as another session sees it."""
    with psycopg.connect(database) as connection:
        columns = "select task_id, pipeline, type, stage, data, traceparent from postroad.outbox order by position"
        return connection.execute(in_schema(columns, schema).encode()).fetchall()


def numbers(database: str) -> list[int]:
    return [row[4]["number"] for row in outbox(database)]


def test_a_connection_appends_in_its_transaction(engine: Engine, database: str) -> None:
    with engine.begin() as connection:
        append(connection, event(1), event(2))
        append(connection, event(3))
        assert outbox(database) == []

    assert numbers(database) == [1, 2, 3]


def test_a_session_appends_after_what_it_has_to_flush(engine: Engine, database: str) -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Host(name="n17"))
        append(session, event(1))
        assert not session.new, "events are written last, with the rows that they tell of locked"
        assert outbox(database) == []
        session.commit()

    assert numbers(database) == [1]


async def test_an_async_connection_appends_in_its_transaction(async_engine: AsyncEngine, database: str) -> None:
    async with async_engine.begin() as connection:
        await append(connection, event(1), event(2))
        await append(connection, event(3))
        assert outbox(database) == []

    assert numbers(database) == [1, 2, 3]


async def test_an_async_session_appends_after_what_it_has_to_flush(async_engine: AsyncEngine, database: str) -> None:
    async with async_engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with AsyncSession(async_engine) as session:
        session.add(Host(name="n17"))
        await append(session, event(1))
        assert not session.new
        assert outbox(database) == []
        await session.commit()

    assert numbers(database) == [1]


async def test_connections_of_psycopg_append_in_their_transactions(database: str) -> None:
    with psycopg.connect(database) as connection:
        append(connection, event(1))
        assert outbox(database) == []
    async with await psycopg.AsyncConnection.connect(database) as connection:
        await append(connection, event(2))
        assert numbers(database) == [1]

    assert numbers(database) == [1, 2]


def test_everything_of_an_event_is_kept(engine: Engine, database: str) -> None:
    data = {"text": "é😀\\u0000'\"%s %(x)s", "list": [1, 2.5, None, True], "deep": {"a/b~": {}}, "large": 2**80}
    with engine.begin() as connection:
        append(
            connection,
            Event("HostReserved", TASK, "road", "allocate", data, traceparent="00-1-2-00"),
            Event(EventType.TASK_CREATED, TASK, "road"),
        )

    assert outbox(database) == [
        (TASK, "road", "HostReserved", "allocate", data, "00-1-2-00"),
        (TASK, "road", "TaskCreated", None, {}, None),
    ]


def test_the_order_of_many_is_the_order_of_their_positions(engine: Engine, database: str) -> None:
    with engine.begin() as connection:
        append(connection, *(event(number) for number in range(2_000)))

    assert numbers(database) == list(range(2_000))


def test_nothing_to_append_is_no_error(engine: Engine, database: str) -> None:
    with engine.begin() as connection:
        append(connection)

    assert outbox(database) == []


def test_an_event_bears_the_id_of_its_transaction_in_savepoints_too(engine: Engine) -> None:
    with engine.begin() as connection:
        append(connection, event(1))
        with connection.begin_nested():
            append(connection, event(2))
        mine = connection.scalar(text("select pg_current_xact_id()::text"))
        kept = connection.scalars(text("select xid::text from postroad.outbox")).all()

    assert kept == [mine, mine]


def test_rolled_back_leaves_nothing(engine: Engine, database: str) -> None:
    with engine.connect() as connection:
        append(connection, event(1))
        connection.rollback()
        append(connection, event(2))
        connection.commit()

    with Session(engine) as session:
        append(session, event(3))

    assert numbers(database) == [2]


async def test_rolled_back_leaves_nothing_when_asynchronous(async_engine: AsyncEngine, database: str) -> None:
    with suppress(ZeroDivisionError):
        async with async_engine.begin() as connection:
            await append(connection, event(1))
            raise ZeroDivisionError
    async with AsyncSession(async_engine) as session:
        await append(session, event(2))

    assert outbox(database) == []


def test_a_savepoint_rolled_back_takes_its_events_along_and_no_others(engine: Engine, database: str) -> None:
    with engine.begin() as connection:
        append(connection, event(1))
        with suppress(ZeroDivisionError), connection.begin_nested():
            append(connection, event(2))
            raise ZeroDivisionError
        with connection.begin_nested():
            append(connection, event(3))
        append(connection, event(4))

    assert numbers(database) == [1, 3, 4]


async def test_a_savepoint_rolled_back_takes_its_events_along_when_asynchronous(
    async_engine: AsyncEngine, database: str
) -> None:
    async with AsyncSession(async_engine) as session, session.begin():
        await append(session, event(1))
        with suppress(ZeroDivisionError):
            async with session.begin_nested():
                await append(session, event(2))
                raise ZeroDivisionError
        await append(session, event(3))

    assert numbers(database) == [1, 3]


def test_bad_data_are_refused_before_anything_is_written(engine: Engine, database: str) -> None:
    unstorable: list[tuple[dict[Any, Any], str]] = [
        ({"a": "x\x00"}, "/a"),
        ({"a": ["\ud800"]}, "/a/0"),
        ({"a": float("nan")}, "/a"),
        ({"a": float("inf")}, "/a"),
        ({"a": {1}}, "/a"),
        ({"a": {"id": UUID(int=1)}}, "/a/id"),
        ({"a": 2**1024}, "/a"),
        ({1: "a"}, ""),
    ]
    with engine.begin() as connection:
        for number, (data, pointer) in enumerate(unstorable):
            with pytest.raises(UnstorableError) as caught:
                append(connection, event(-1), Event("HostReserved", TASK, "road", data=data))
            assert caught.value.pointer == pointer
            append(connection, event(number))

    assert numbers(database) == list(range(len(unstorable)))


def test_names_that_postgres_cannot_keep_spoil_no_transaction(engine: Engine, database: str) -> None:
    bad = [
        Event("HostReserved", TASK, "ro\x00ad"),
        Event("HostReserved", TASK, "road", "allo\x00cate"),
        Event("HostReserved", TASK, "road", traceparent="\x00"),
        Event("HostReserved", TASK, "road", "\ud800"),
    ]
    with engine.begin() as connection:
        for number, each in enumerate(bad):
            with pytest.raises((DBAPIError, ValueError)):
                append(connection, event(-1), each)
            append(connection, event(number))

    assert numbers(database) == list(range(len(bad)))


async def test_bad_data_are_refused_in_the_call_when_asynchronous(async_engine: AsyncEngine, database: str) -> None:
    async with async_engine.begin() as connection:
        with pytest.raises(UnstorableError, match="/a"):
            append(connection, Event("HostReserved", TASK, "road", data={"a": "\x00"}))
        await append(connection, event(2))

    assert numbers(database) == [2]


@pytest.mark.parametrize("connection", [None, "postgresql://", object()])
def test_what_is_no_connection_is_told_so(connection: Any) -> None:
    with pytest.raises(TypeError, match="a connection or session of SQLAlchemy or psycopg is needed, not"):
        append(connection, event(1))


def test_another_schema_is_named(engine: Engine, database: str) -> None:
    upgrade(database, "other_road")

    with engine.begin() as connection:
        append(connection, event(1), schema="other_road")

    assert outbox(database) == []
    assert len(outbox(database, "other_road")) == 1


async def test_another_schema_is_named_when_asynchronous(async_engine: AsyncEngine, database: str) -> None:
    upgrade(database, "other_road")

    async with AsyncSession(async_engine) as session, session.begin():
        await append(session, event(1), schema="other_road")

    assert outbox(database) == []
    assert len(outbox(database, "other_road")) == 1


def test_a_schema_without_our_tables_fails_the_transaction(engine: Engine) -> None:
    with pytest.raises(DBAPIError, match=r"no_road\.outbox"), engine.begin() as connection:
        append(connection, event(1), schema="no_road")


async def test_positions_follow_cause(async_engine: AsyncEngine, database: str) -> None:
    """Whoever changes a row after another has its position after the other's, since it had to wait for the lock."""
    async with async_engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await connection.execute(text("insert into host values ('n17')"))
    lock = text("select from host for update")

    async def change(number: int, held: asyncio.Event, release: asyncio.Event) -> None:
        async with async_engine.begin() as connection:
            await connection.execute(lock)
            held.set()
            await release.wait()
            await append(connection, event(number))

    release, first_held, second_held = asyncio.Event(), asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(change(1, first_held, release))
    await first_held.wait()
    second = asyncio.create_task(change(2, second_held, release))
    await asyncio.to_thread(wait_for_a_waiter, database)
    release.set()
    await asyncio.gather(first, second)

    assert numbers(database) == [1, 2]


def wait_for_a_waiter(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        waiting = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        while connection.execute(waiting).fetchone() is None:
            pass
