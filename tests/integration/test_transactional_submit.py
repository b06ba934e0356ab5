"""Submitting in a transaction of one's own: from every kind of connection, in SQL, and under whose keys."""

import asyncio
import contextlib
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid4

import psycopg
import pytest
from opentelemetry.context import attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context
from psycopg.sql import SQL, Identifier, Literal
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from postroad import Reject, Settings, submit, submit_many
from postroad.core.database import make_engine, sqlalchemy_url
from postroad.core.errors import NotFoundError, RefusedError, UnstorableError
from postroad.core.task import new_task_id
from postroad.migrations import upgrade
from postroad.outbox.grant import grant_submit
from postroad.outbox.submit import Accepted
from tests.integration.door import NOTHING, Door
from tests.integration.line import open_line
from tests.integration.road import Road, pipeline

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

# Every kind of connection


class Caller:
    """Somebody with a transaction; whatever kind of connection it has, ``submit`` and ``ask`` are the same here."""

    def __init__(self, connection: Any, ask: Callable[[str], Any]) -> None:
        self.connection = connection
        self._ask = ask

    async def submit(self, *arguments: Any, **named: Any) -> Accepted:
        accepted: Accepted = await _value(submit(self.connection, *arguments, **named))
        return accepted

    async def submit_many(self, *arguments: Any, **named: Any) -> list[Accepted]:
        accepted: list[Accepted] = await _value(submit_many(self.connection, *arguments, **named))
        return accepted

    async def ask(self, statement: str) -> Any:
        """Run a statement in the transaction."""
        return await _value(self._ask(statement))


async def _value(given: Any) -> Any:
    return await given if isinstance(given, Awaitable) else given


@asynccontextmanager
async def sqlalchemy_connection(settings: Settings) -> AsyncIterator[Caller]:
    engine = create_engine(sqlalchemy_url(settings.database_url))
    try:
        with engine.begin() as connection:
            yield Caller(connection, lambda statement: connection.execute(text(statement)))
    finally:
        engine.dispose()


@asynccontextmanager
async def sqlalchemy_session(settings: Settings) -> AsyncIterator[Caller]:
    engine = create_engine(sqlalchemy_url(settings.database_url))
    try:
        with Session(engine) as session, session.begin():
            yield Caller(session, lambda statement: session.execute(text(statement)))
    finally:
        engine.dispose()


@asynccontextmanager
async def async_connection(settings: Settings) -> AsyncIterator[Caller]:
    engine = make_engine(settings, application="test", pool=1)
    try:
        async with engine.begin() as connection:
            yield Caller(connection, lambda statement: connection.execute(text(statement)))
    finally:
        await engine.dispose()


@asynccontextmanager
async def async_session(settings: Settings) -> AsyncIterator[Caller]:
    engine = make_engine(settings, application="test", pool=1)
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield Caller(session, lambda statement: session.execute(text(statement)))
    finally:
        await engine.dispose()


@asynccontextmanager
async def psycopg_connection(settings: Settings) -> AsyncIterator[Caller]:
    with psycopg.connect(settings.database_url) as connection:
        yield Caller(connection, lambda statement: connection.execute(statement.encode()))


@asynccontextmanager
async def async_psycopg_connection(settings: Settings) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(settings.database_url) as connection:
        yield Caller(connection, lambda statement: connection.execute(statement.encode()))


Begin = Callable[[Settings], AbstractAsyncContextManager[Caller]]
KINDS: list[Begin] = [
    sqlalchemy_connection,
    sqlalchemy_session,
    async_connection,
    async_session,
    psycopg_connection,
    async_psycopg_connection,
]


class RolledBackError(Exception): ...


async def roll_back(begin: Begin, settings: Settings) -> None:
    """Submit in a transaction that then fails."""
    with contextlib.suppress(RolledBackError):
        async with begin(settings) as caller:
            await caller.submit("travel", "rolled back", key="one")
            await caller.submit_many("travel", [1, 2, 3])
            raise RolledBackError


async def test_what_was_rolled_back_left_nothing(road: Road, subtests: pytest.Subtests) -> None:
    for begin in KINDS:
        with subtests.test(begin.__name__):
            await roll_back(begin, road.settings)

            assert await road.count() == NOTHING


async def test_what_was_committed_is_there_as_if_it_had_come_over_http(road: Road, subtests: pytest.Subtests) -> None:
    for place, begin in enumerate(KINDS):
        with subtests.test(begin.__name__):
            await submit_in_every_way(begin, road, place)
    assert await road.violated() == {}


async def submit_in_every_way(begin: Begin, road: Road, place: int) -> None:
    """Submit five tasks in one transaction, as the ``place``-th to do so."""
    own = uuid4()
    before = await road.count()
    async with begin(road.settings) as caller:
        accepted = await caller.submit("travel", {"to": "Rome"}, labels={"team": "blue"}, traceparent=TRACE)
        many = await caller.submit_many(
            "travel", ["a", None, {"é": "\U0001f600"}], keys=[f"x{place}", None, f"z{place}"]
        )
        chosen = await caller.submit("travel", None, task_id=own)
        assert await road.count() == before

    assert await road.task(accepted.task_id, "payload", "labels", "status", "traceparent", "created_at") == (
        {"to": "Rome"},
        {"team": "blue"},
        "pending",
        TRACE,
        accepted.created_at,
    )
    assert accepted.traceparent == TRACE
    assert [(await road.task(one.task_id, "payload"))[0] for one in many] == ["a", None, {"é": "\U0001f600"}]
    assert chosen.task_id == own
    assert await road.events(accepted.task_id) == ["TaskCreated"]
    times = place + 1
    assert await road.count() == {"task": 5 * times, "outbox": 5 * times, "intake_key": 3 * times}


@pytest.mark.parametrize("begin", KINDS[::5], ids=lambda begin: begin.__name__)
async def test_a_refusal_says_what_is_wrong_and_leaves_the_transaction_usable(begin: Begin, road: Road) -> None:
    taken = await road.accept(payload=1, key="taken")
    async with begin(road.settings) as caller:
        with pytest.raises(NotFoundError, match="no pipeline 'nowhere'; postroad deploy"):
            await caller.submit("nowhere", 1)
        with pytest.raises(RefusedError, match=f"'taken' stands for task {taken}, which was submitted with other"):
            await caller.submit("travel", 2, key="taken")
        with pytest.raises(RefusedError, match=f"there is another task {taken}"):
            await caller.submit("travel", 2, key="other", task_id=taken)
        with pytest.raises(RefusedError, match="deadline: a moment that is still ahead"):
            await caller.submit("travel", 2, deadline=datetime(2020, 1, 1, tzinfo=UTC))
        with pytest.raises(UnstorableError, match=r"not_before.*time zone|time zone.*not_before"):
            await caller.submit("travel", 2, not_before=datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(UnstorableError, match="cannot keep the character"):
            await caller.submit("travel", "\x00")
        with pytest.raises(UnstorableError, match=r"1 to 255 printable ASCII.*/key"):
            await caller.submit("travel", 2, key="ü")
        await caller.ask("create table mine (n int)")
        await caller.submit("travel", 3)

    assert await road.count("task") == {"task": 2}
    assert await road.ask("select * from mine") == []


async def test_of_many_all_are_submitted_or_none(road: Road) -> None:
    await road.accept(payload=1, key="taken")
    async with async_session(road.settings) as caller:
        with pytest.raises(RefusedError, match="'taken' stands for"):
            await caller.submit_many("travel", [1, 2, 3], keys=["a", "taken", "b"])
        with pytest.raises(UnstorableError, match="one key for each payload: 1 for 2"):
            await caller.submit_many("travel", [1, 2], keys=["a"])
        assert await caller.submit_many("travel", []) == []
        await caller.submit_many("travel", [1, 2], keys=["a", "b"])

    assert await road.count() == {"task": 3, "outbox": 3, "intake_key": 3}
    assert await road.violated() == {}


async def test_a_savepoint_that_is_rolled_back_takes_its_tasks_with_it(road: Road) -> None:
    async with road.engine.begin() as connection:
        kept = await submit(connection, "travel", 1, key="kept")
        savepoint = await connection.begin_nested()
        await submit(connection, "travel", 2, key="dropped")
        await savepoint.rollback()
        again = await submit(connection, "travel", 3, key="dropped")

    rows = await road.ask("select task_id from postroad.task order by payload")
    assert rows == [(kept.task_id,), (again.task_id,)]
    assert await road.violated() == {}


async def test_what_is_no_connection_of_ours_is_told_so(road: Road) -> None:
    with pytest.raises(TypeError, match=r"connection or session of SQLAlchemy or psycopg is needed, not builtins\.str"):
        submit("postgresql://", "travel", 1)  # type: ignore[call-overload]
    engine = create_engine("sqlite://")
    with (
        engine.connect() as connection,
        pytest.raises(TypeError, match=r"engine on psycopg is needed.*not on pysqlite"),
    ):
        submit(connection, "travel", 1)
    engine.dispose()


async def test_a_task_goes_on_with_the_trace_of_the_span_that_it_is_submitted_in(road: Road) -> None:
    context = SpanContext(0xABC << 64 | 1, 0xDEF, is_remote=False, trace_flags=TraceFlags(1))
    token = attach(set_span_in_context(NonRecordingSpan(context)))
    try:
        async with road.engine.begin() as connection:
            in_span = await submit(connection, "travel", 1)
    finally:
        detach(token)
    async with road.engine.begin() as connection:
        in_none = await submit(connection, "travel", 1)

    assert in_span.traceparent == f"00-{0xABC << 64 | 1:032x}-{0xDEF:016x}-01"
    assert (await road.task(in_span.task_id, "trace_id"))[0] == f"{0xABC << 64 | 1:032x}"
    assert in_none.traceparent[3:35] not in ("0" * 32, in_span.traceparent[3:35])


async def test_another_schema_is_named(road: Road, settings: Settings) -> None:
    upgrade(settings.database_url, "elsewhere")
    await road.ask("insert into elsewhere.pipeline values ('travel', '{}', 1)")

    async with road.engine.begin() as connection:
        await submit(connection, "travel", 1, schema="elsewhere")

    assert await road.ask("select count(*) from elsewhere.task") == [(1,)]
    assert await road.count() == NOTHING


# Keys, from wherever they come


async def test_one_key_is_one_task_over_http_python_and_sql(door: Door) -> None:
    road = door.road
    payload = {"b": 1, "a": [1.0, "é"]}
    over_http = (await door.submit("one", payload=payload, labels={"x": "1", "y": "2"})).json()["task_id"]
    async with road.engine.begin() as connection:
        in_python = await submit(
            connection, "travel", {"a": [1.0, "é"], "b": 1}, key="one", labels={"y": "2", "x": "1"}
        )
    ((in_sql,),) = await road.ask(
        """select postroad.submit('travel', '{"a": [1.0, "é"], "b": 1}', 'one', labels => '{"y": "2", "x": "1"}')"""
    )
    again = await door.submit("one", payload=payload, labels={"x": "1", "y": "2"})
    other = await door.submit("one", payload={"b": 2})

    assert {UUID(over_http), in_python.task_id, in_sql, UUID(again.json()["task_id"])} == {UUID(over_http)}
    assert in_python.is_replay
    assert again.headers["Idempotent-Replayed"] == "true"
    assert other.status_code == 422
    assert await road.count() == {"task": 1, "outbox": 1, "intake_key": 1}


async def test_what_sql_has_submitted_is_replayed_over_http(door: Door) -> None:
    own = uuid4()
    ((first,),) = await door.road.ask("select postroad.submit('travel', '{}', 'k')")
    await door.road.ask("select postroad.submit('travel', '{}', task_id => :own)", own=own)

    replayed = await door.submit("k", payload={})
    own_again = await door.submit(payload={}, task_id=str(own))
    other = await door.submit("k", payload={}, labels={"x": "y"})

    assert replayed.json()["task_id"] == str(first)
    assert replayed.headers["Idempotent-Replayed"] == own_again.headers["Idempotent-Replayed"] == "true"
    assert own_again.json()["task_id"] == str(own)
    assert other.status_code == 422


async def test_numbers_that_are_written_in_other_ways_are_the_same_content(door: Door) -> None:
    ((first,),) = await door.road.ask("select postroad.submit('travel', '[1e2, 1.50, -0]', 'k')")

    replayed = await door.post(b'{"pipeline": "travel", "payload": [100.0, 15e-1, 0]}', Idempotency_Key="k")
    other = await door.post(b'{"pipeline": "travel", "payload": [100.1, 1.5, 0]}', Idempotency_Key="k")

    assert replayed.json()["task_id"] == str(first)
    assert other.status_code == 422


async def test_a_key_from_before_there_was_one_place_is_replayed_by_the_content_of_its_task(door: Door) -> None:
    task_id = await door.road.accept(payload={"to": "Rome"}, key="old")
    await door.road.ask("update postroad.intake_key set request_hash = sha256('as it was made then')")

    replayed, other = await door.submit("old"), await door.submit("old", payload={"to": "Athens"})

    assert replayed.json()["task_id"] == str(task_id)
    assert other.status_code == 422


async def test_the_same_key_from_many_at_once_is_one_task(road: Road) -> None:
    start = threading.Barrier(8)
    answers: list[UUID] = []

    def in_sql() -> None:
        with psycopg.connect(road.settings.database_url) as connection:
            start.wait(20)
            row = connection.execute("select postroad.submit('travel', '{}', 'k')").fetchone()
            assert row
            answers.append(row[0])

    def in_python() -> None:
        with psycopg.connect(road.settings.database_url) as connection:
            start.wait(20)
            answers.append(submit(connection, "travel", {}, key="k").task_id)

    with ThreadPoolExecutor(8) as threads:
        for work in (in_sql, in_python) * 4:
            threads.submit(work)

    assert len(answers) == 8
    assert len(set(answers)) == 1
    assert await road.count() == {"task": 1, "outbox": 1, "intake_key": 1}


async def test_who_waits_for_a_key_gets_it_if_the_other_rolls_back(road: Road) -> None:
    async with road.engine.connect() as connection:
        await submit(connection, "travel", 1, key="k")
        with psycopg.connect(road.settings.database_url) as other:
            waiting = asyncio.create_task(asyncio.to_thread(lambda: submit(other, "travel", 2, key="k")))
            await road.until_waiting(1)
            await connection.rollback()
            accepted = await waiting

    assert not accepted.is_replay
    assert (await road.task(accepted.task_id, "payload"))[0] == 2


async def test_a_key_that_an_open_transaction_holds_keeps_nobody_else_from_the_door(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.intake.submit.PATIENCE", "100ms")
    monkeypatch.setattr("postroad.intake.submit.PATIENCE_OF_MANY", "50ms")
    async with door.road.engine.connect() as connection:
        held = await submit(connection, "travel", {"to": "Rome"}, key="held")
        answers = await asyncio.gather(*(door.submit(key) for key in ("a", "held", "b", "c")))
        lines = await door.batch([{"pipeline": "travel", "payload": 1, "idempotency_key": "held"}])
        await connection.commit()
    after = await door.submit("held")

    assert [answer.status_code for answer in answers] == [202, 409, 202, 202]
    assert answers[1].json()["type"] == lines[0]["type"] == "/problems/key-in-flight"
    assert answers[1].headers["Retry-After"] == "2"
    assert after.json()["task_id"] == str(held.task_id)


# In SQL, as a role that has nothing but the grant


@pytest.fixture
async def clerk(road: Road) -> AsyncIterator[str]:
    """The URL of a role that was granted to submit, and nothing else."""
    role = f"clerk_{uuid.uuid4().hex[:12]}"
    parts = urlsplit(road.settings.database_url)
    with psycopg.connect(road.settings.database_url, autocommit=True) as connection:
        connection.execute(SQL("create role {} login password {}").format(Identifier(role), Literal("pass")))
        try:
            async with road.engine.begin() as granting:
                await grant_submit(granting, role, "postroad")
                await grant_submit(granting, role, "postroad")
            yield urlunsplit(parts._replace(netloc=f"{role}:pass@{parts.netloc.rpartition('@')[2]}"))
        finally:
            connection.execute(SQL("drop owned by {}").format(Identifier(role)))
            connection.execute(SQL("drop role {}").format(Identifier(role)))


async def test_a_role_with_nothing_but_the_grant_submits_and_sees_no_table(road: Road, clerk: str) -> None:
    with psycopg.connect(clerk) as connection:
        ((first,),) = connection.execute("select postroad.submit('travel', '{\"to\": \"Rome\"}')").fetchall()
        many = connection.execute("select * from postroad.submit_many('travel', array['1', '2']::jsonb[])").fetchall()
        accepted = submit(connection, "travel", 3)
        several = submit_many(connection, "travel", [4, 5])
        status = connection.execute("select status, stage_status from postroad.task_status(%s)", [first]).fetchall()
        connection.commit()
        for statement in (
            "select from postroad.task",
            "insert into postroad.outbox (task_id, pipeline, type) values (gen_random_uuid(), 'travel', 'X')",
            "select postroad.new_task_id()",
            "select postroad.refuse('', null, '', '', '')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())
            connection.rollback()

    assert status == [("pending", "received")]
    assert [place for place, *_ in many] == [1, 2]
    ids = {first, accepted.task_id, *(task_id for _, task_id, _ in many), *(one.task_id for one in several)}
    assert {task_id for (task_id,) in await road.ask("select task_id from postroad.task")} == ids
    assert await road.violated() == {}


async def test_a_search_path_of_the_callers_leads_nobody_astray(road: Road, clerk: str) -> None:
    with psycopg.connect(clerk) as connection:
        connection.execute("create temp table pipeline (pipeline text)")
        connection.execute("create function pg_temp.sha256(bytea) returns bytea return bytea '\\x00'")
        connection.execute("set search_path = pg_temp, postroad, pg_catalog")
        connection.execute("select submit('travel', '{}', 'k')")

    assert await road.ask("select octet_length(request_hash) from postroad.intake_key") == [(32,)]


async def test_without_the_grant_there_is_no_way_in(road: Road, clerk: str) -> None:
    await road.ask(f"revoke execute on all functions in schema postroad from {urlsplit(clerk).username}")
    with psycopg.connect(clerk) as connection:
        for call in (
            "submit('travel', '{}')",
            "submit_many('travel', '{}')",
            f"task_status('{uuid4()}')",
            "accept(null, null, null, null, null, null, null, null, null, null)",
            "accept_all(null, null, null, null, null, null, null, null, null, null)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"select postroad.{call}".encode())
            connection.rollback()


async def test_an_unknown_role_is_refused(road: Road) -> None:
    async with road.engine.begin() as connection:
        with pytest.raises(NotFoundError, match="no role 'nobody at all'"):
            await grant_submit(connection, "nobody at all", "postroad")


REFUSED = [
    ("submit('nowhere', '{}')", "PR002", "there is no pipeline 'nowhere'"),
    ("submit(null, '{}')", "PR001", "pipeline: the name of a pipeline is required"),
    ("submit('travel', null)", "PR001", "payload: a payload is required; null, as JSON, is one"),
    ("submit('travel', '2', 'taken')", "PR003", "which was submitted with other content"),
    ("submit('travel', '2', 'new', task_id => :taken)", "PR004", "there is another task"),
    ("submit('travel', '{}', '')", "PR001", "key: 1 to 255 printable ASCII"),
    ("submit('travel', '{}', ' k')", "PR001", "key: 1 to 255 printable ASCII"),
    ("submit('travel', '{}', E'k\\n')", "PR001", "key: 1 to 255 printable ASCII"),
    ("submit('travel', '{}', repeat('k', 256))", "PR001", "key: 1 to 255 printable ASCII"),
    ("submit('travel', '{}', 'schlüssel')", "PR001", "key: 1 to 255 printable ASCII"),
    ("submit('travel', '{}', labels => '[]')", "PR001", "labels: an object of at most 16 strings"),
    ("submit('travel', '{}', labels => '{\"a b\": \"\"}')", "PR001", "labels: a label's name is"),
    ("submit('travel', '{}', labels => '{\"a\": 1}')", "PR001", "labels: a label is a string of at most 255"),
    (
        "submit('travel', '{}', labels => jsonb_build_object('a', repeat('x', 256)))",
        "PR001",
        "labels: a label is a string of at most 255",
    ),
    (
        "submit('travel', '{}', labels => (select jsonb_object_agg(n, 'x') from generate_series(1, 17) as n))",
        "PR001",
        "labels: an object of at most 16 strings",
    ),
    ("submit('travel', (repeat('[', 101) || repeat(']', 101))::jsonb)", "PR001", "payload: nested deeper than 100"),
    ("submit('travel', '[1e400]')", "PR001", "payload: a number is too large for a double"),
    ("submit('travel', '{}', deadline => now())", "PR001", "deadline: a moment that is still ahead"),
    ("submit('travel', '{}', deadline => 'infinity')", "PR001", "deadline: a moment; leave it out"),
    ("submit('travel', '{}', not_before => 'infinity')", "PR001", "not_before: a moment at most a year ahead"),
    ("submit('travel', '{}', not_before => '-infinity')", "PR001", "not_before: a moment; leave it out"),
    (
        "submit('travel', '{}', not_before => now() + interval '2 h', deadline => now() + interval '1 h')",
        "PR001",
        "deadline: a moment after not_before",
    ),
    ("submit_many('travel', array['1', null]::jsonb[])", "PR001", "a payload is required; null, as JSON, is one"),
    ("submit_many('travel', array['1', '2']::jsonb[], array['a'])", "PR001", "there are 1 for 2"),
    ("submit_many('travel', array['1', '2']::jsonb[], array['a', 'taken'])", "PR003", "'taken' stands for task"),
]
"""What is asked for, the SQLSTATE that answers it, and words of the message."""


async def test_what_is_refused_in_sql_says_so_with_a_state_of_its_own(road: Road, subtests: pytest.Subtests) -> None:
    taken = await road.accept(payload=1, key="taken")
    before = await road.count()

    with psycopg.connect(road.settings.database_url) as connection:
        for call, state, said in REFUSED:
            with subtests.test(call):
                with pytest.raises(psycopg.Error) as refused:
                    connection.execute(f"select postroad.{call}".replace(":taken", f"'{taken}'").encode())
                connection.rollback()

                assert refused.value.sqlstate == state
                assert said in str(refused.value.diag.message_primary)
                assert refused.value.diag.message_hint

    assert await road.count() == before


async def test_what_is_at_the_edge_of_the_rules_is_submitted(road: Road) -> None:
    for call in (
        "submit('travel', cast(repeat('[', 100) || repeat(']', 100) as jsonb))",
        "submit('travel', '[1e308, -1e308]')",
        "submit('travel', to_jsonb(repeat('9', 400)))",
        "submit('travel', to_jsonb(repeat('[', 400)))",
        "submit('travel', 'null', repeat('k', 255))",
        "submit('travel', 'null', 'a b~!')",
        "submit('travel', 'null', labels => (select jsonb_object_agg(n, 'x') from generate_series(1, 16) as n))",
        "submit('travel', 'null', labels => jsonb_build_object(repeat('n', 63), repeat('é', 255)))",
        "submit('travel', 'null', not_before => now() + interval '365 days')",
        "submit('travel', 'null', not_before => now() - interval '1 year', deadline => now() + interval '10 years')",
        "submit('travel', 'null', null, null, null, null, null, null)",
    ):
        await road.ask(f"select postroad.{call}")

    assert await road.count("task") == {"task": 11}
    assert await road.violated() == {}


async def test_rows_of_a_table_are_submitted_by_its_trigger(road: Road, clerk: str) -> None:
    """As docs/submit.md has it."""
    await road.ask("create table purchase (id int primary key, sku text)")
    await road.ask(
        """
        create function submit_purchases() returns trigger language plpgsql as $$
        begin
            perform postroad.submit_many(
                'travel', array_agg(to_jsonb(added)), keys => array_agg('purchase-' || added.id))
               from added;
            return null;
        end $$
        """
    )
    await road.ask(
        "create trigger submit_purchases after insert on purchase referencing new table as added"
        " for each statement execute function submit_purchases()"
    )
    await road.ask(f"grant insert on purchase to {urlsplit(clerk).username}")

    with psycopg.connect(clerk) as connection:
        connection.execute("insert into purchase select n, 'n' || n from generate_series(1, 300) as n")
        connection.execute("insert into purchase select 1, 'x' where false")

    assert await road.ask("select count(*), min(payload ->> 'sku') from postroad.task") == [(300, "n1")]
    assert await road.ask("select count(distinct trace_id), count(distinct substr(traceparent, 37)) from postroad.task")
    assert await road.violated() == {}


async def test_many_are_answered_in_their_order_and_repeats_are_told(road: Road) -> None:
    statement = "select * from postroad.submit_many('travel', array['1', '2', '1']::jsonb[], array['a', null, 'a'])"

    (first, second, third), again = await road.ask(statement), await road.ask(statement)

    assert [row[2] for row in (first, second, third)] == [False, False, True]
    assert third[1] == first[1]
    assert [row[2] for row in again] == [True, False, True]
    assert await road.ask("select * from postroad.submit_many('travel', null)") == []
    assert await road.ask("select * from postroad.submit_many('travel', '{}')") == []
    assert await road.count("task") == {"task": 3}


async def test_ids_and_traces_made_in_sql_are_like_those_of_ours(road: Road) -> None:
    made = "select postroad.new_task_id(), postroad.new_traceparent(), clock_timestamp(), pg_sleep(0.002)"
    rows = [row for _ in range(50) for row in await road.ask(made)]
    ids = [task_id for task_id, *_ in rows]

    assert ids == sorted(ids)
    assert len(set(ids)) == 50
    for task_id, trace, moment, _ in rows:
        assert task_id.version == new_task_id().version == 7
        assert task_id.variant == uuid.RFC_4122
        told = datetime.fromtimestamp((task_id.int >> 80) / 1000, UTC)
        assert timedelta() <= moment - told < timedelta(seconds=1)
        assert len(trace) == 55
    assert len({trace for _, trace, *_ in rows}) == 50


async def test_a_trace_that_is_none_is_replaced(road: Road) -> None:
    for given in (None, "nonsense", f"00-{'0' * 32}-{'1' * 16}-00", f"00-{'1' * 32}-{'0' * 16}-00", f"{TRACE}0"):
        ((task_id,),) = await road.ask("select postroad.submit('travel', '{}', traceparent => :given)", given=given)

        trace_id, traceparent = await road.task(task_id, "trace_id", "traceparent")
        assert traceparent != given
        assert traceparent[3:35] == trace_id
        assert trace_id.strip("0")
        assert len(traceparent) == 55


async def test_where_a_task_is_can_be_asked_in_sql(road: Road) -> None:
    task_id = await road.accept()
    await road.commit(task_id, "pack")
    await road.commit(task_id, "ride", Reject("no road"))

    columns = "pipeline, status, stage_status, stages_done, retry_count, finished_at is not null, dead_stage, reason"
    ask = f"select {columns} from postroad.task_status(:id)"  # noqa: S608 - columns of this test

    assert await road.ask(ask, id=task_id) == [
        ("travel", "failed", "failed_at_stage:ride", ["pack"], 0, True, "ride", "no road")
    ]
    assert await road.ask(ask, id=uuid4()) == []


# In traffic


async def test_what_was_submitted_in_any_way_is_run_and_what_was_rolled_back_is_not(settings: Settings) -> None:
    line_of_one = pipeline("travel", pack=())
    async with open_line(settings, line_of_one) as line:
        line.work()
        for place, begin in enumerate(KINDS):
            async with begin(settings) as caller:
                await caller.submit("travel", place)
            await roll_back(begin, settings)
        with psycopg.connect(settings.database_url) as connection:
            connection.execute("select postroad.submit('travel', '\"in SQL\"')")

        assert await line.are_finished() == {"completed": len(KINDS) + 1}
        assert await line.violated() == {}
