"""The doctor: each thing that can be wrong is seen, nothing is seen where all is well, and nothing is changed."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, LiteralString, NamedTuple
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from postroad import Pipeline, Settings, Task
from postroad.cli.main import main
from postroad.core.errors import SettingsError
from postroad.core.outcome import Retry, Snooze
from postroad.doctor import outbox, postgres, redis, sessions, streams, vacuum
from postroad.doctor.checks import CHECKS
from postroad.doctor.examination import Result, examine
from postroad.doctor.finding import Level
from postroad.doctor.patient import Patient
from postroad.testing.traffic import until
from tests.integration.line import Line, open_line
from tests.integration.road import Road, die

OK, UNKNOWN, WARNING, ERROR = Level.OK, Level.UNKNOWN, Level.WARNING, Level.ERROR

WORKER = "h:1:aaaaaaaa"


async def looked(settings: Settings, *names: str, **options: Any) -> dict[str, Result]:
    """What these checks come to, by their names; all of them unless some are named."""
    patient = Patient(settings, **options)
    try:
        results = await examine(patient, [check for check in CHECKS if not names or check.name in names])
    finally:
        await patient.aclose()
    return {result.check.name: result for result in results}


async def saw(settings: Settings, name: str, **options: Any) -> tuple[Level, str]:
    """How bad it is by one check, and all that it says, with what to do."""
    result = (await looked(settings, name, **options))[name]
    assert all(finding.do for finding in result.findings if finding.level is not OK)
    return result.level, "\n".join(f"{finding.saw} {finding.do}" for finding in result.findings)


class Wound(NamedTuple):
    """What is done to Postgres, and what the check then has to say."""

    check: str
    level: Level
    words: str
    statements: tuple[str, ...]


def process(
    role: str = "stage",
    *,
    name: str = WORKER,
    seen: str = "0 s",
    started: str = "1 min",
    stages: str = "{}",
    version: str = "0.1.0",
    is_leading: bool = False,
) -> str:
    """A statement that registers a process."""
    return (
        "insert into postroad.process"  # noqa: S608 - values of this test
        " (process, role, host, pid, version, stages, is_leading, started_at, seen_at)"
        f" values ('{name}', '{role}', 'h', 1, '{version}', '{stages}', {is_leading},"
        f" now() - interval '{started}', now() - interval '{seen}')"
    )


def event(leaf: str, age: str) -> str:
    """A statement that appends an event of some age to a leaf, before all others."""
    return (
        "insert into postroad.outbox"  # noqa: S608 - values of this test
        " (position, slot, task_id, pipeline, type, occurred_at) overriding system value"
        f" values (-1, {leaf}, gen_random_uuid(), 'travel', 'TaskCompleted', now() - interval '{age}')"
    )


def letters(count: int, age: str) -> str:
    """A statement that adds dead letters of one task, which did not die so often."""
    return (
        "insert into postroad.dead_letter"  # noqa: S608 - values of this test
        " (task_id, pipeline, stage, reason, fingerprint, attempts, died_at, resolved_at, resolution)"
        f" select task_id, 'travel', 'pack', 'r', 'f', 1, now() - interval '{age}', now(), 'discarded'"
        f" from postroad.task, generate_series(1, {count})"
    )


def key(name: str, *, created: str, ends: str | None = None, used: bool = False, revoked: bool = False) -> str:
    """A statement that makes a key of the door."""
    moments = [
        "null" if ends is None else f"now() + interval '{ends}'",
        "now()" if used else "null",
        "now()" if revoked else "null",
    ]
    return (
        "insert into postroad.api_key"  # noqa: S608 - values of this test
        " (key_id, digest, name, scopes, created_at, created_by, expires_at, last_used_at, revoked_at)"
        f" values ('0123456789ab', sha256('secret'), '{name}', '{{submit}}', now() - interval '{created}', 'test',"
        f" {', '.join(moments)})"
    )


def here(setting: str) -> str:
    """A statement that sets something for this database alone."""
    return f"do $$ begin execute format('alter database %I {setting}', current_database()); end $$"


RUNS_ALL = "{travel.pack,travel.ride,travel.rest,travel.arrive}"

WOUNDS = [
    Wound("writable", ERROR, "read-only by default", (here("set default_transaction_read_only = on"),)),
    Wound("durability", ERROR, "answered with 202", (here("set synchronous_commit = off"),)),
    Wound("role-settings", WARNING, "statement_timeout is 3.0 s", (here("set statement_timeout = ''3s''"),)),
    Wound(
        "role-settings",
        WARNING,
        "idle_in_transaction_session_timeout is 20 s",
        (here("set idle_in_transaction_session_timeout = ''20s''"),),
    ),
    Wound("role-settings", WARNING, "answers 503", (here("set idle_session_timeout = ''10min''"),)),
    Wound("role-settings", OK, "is serializable", (here("set default_transaction_isolation = serializable"),)),
    Wound("connections", ERROR, "of the 4 connections of this database are free", (here("connection limit 4"),)),
    Wound("autovacuum", WARNING, "off for postroad.task", ("alter table postroad.task set (autovacuum_enabled=off)",)),
    Wound("revision", ERROR, "is at revision 0007", ("update postroad.alembic_version set version_num = '0007'",)),
    Wound("revision", ERROR, "upgrade this one", ("update postroad.alembic_version set version_num = '9999'",)),
    Wound("revision", ERROR, "has no tables", ("drop schema postroad cascade",)),
    Wound("whole-schema", UNKNOWN, "there is no table of ours", ("drop schema postroad cascade",)),
    Wound("whole-schema", ERROR, "lacks open_work", ("drop view postroad.open_work",)),
    Wound(
        "whole-schema", ERROR, "lacks operation.reason", ("alter table postroad.operation drop column reason cascade",)
    ),
    Wound("whole-schema", ERROR, "lacks submit()", ("drop function postroad.submit",)),
    Wound(
        "whole-schema",
        ERROR,
        "reindex index concurrently postroad.task_created_at",
        ("update pg_index set indisvalid = false where indexrelid = 'postroad.task_created_at'::regclass",),
    ),
    Wound(
        "whole-schema",
        ERROR,
        "only once a second",
        ("alter table postroad.outbox disable trigger wake_relay",),
    ),
    Wound(
        "whole-schema",
        ERROR,
        "validate constraint",
        ("alter table postroad.task add constraint few check (retry_count < 10) not valid",),
    ),
    Wound("versions", WARNING, "relay h:1:aaaaaaaa is postroad 0.0.1", (process("relay", version="0.0.1"),)),
    Wound("relay", ERROR, "no relay lives", ()),
    Wound("relay", ERROR, "of 1 relay none works", (process("relay"),)),
    Wound("relay", OK, "just been started", (process("relay", started="2 s"),)),
    Wound("relay", OK, "h:1:aaaaaaaa works", (process("relay", is_leading=True),)),
    Wound(
        "relay",
        ERROR,
        "2 relays say that they work",
        (process("relay", is_leading=True), process("relay", name="other", is_leading=True)),
    ),
    Wound("intake", WARNING, "no intake lives", ()),
    Wound("intake", OK, "a process of the intake", (process("intake"),)),
    Wound("died", WARNING, "was not heard of for 3 min", (process(seen="3 min"),)),
    Wound("died", OK, "1 did earlier today", (process(seen="3 h"),)),
    Wound("died", OK, "in the last hour", (process(seen="3 min"), "update postroad.process set stopped_at = now()")),
    Wound(
        "schedules",
        ERROR,
        "nightly by 3 h",
        (
            "insert into postroad.schedule (schedule, pipeline, cron, timezone, payload, labels, next_at)"
            " values ('nightly', 'travel', '0 3 * * *', 'UTC', 'null', '{}', now() - interval '3 hours')",
        ),
    ),
    Wound("workers", ERROR, "nobody works on travel.arrive", (process(stages="{travel.pack,travel.ride}"),)),
    Wound("workers", OK, "4 stages, each with a live process", (process(stages=RUNS_ALL),)),
    Wound("workers", WARNING, "no pipeline is deployed", ("delete from postroad.stage",)),
    Wound("undeployed", ERROR, "runs travel.fly, which is not in force", (process(stages="{travel.fly}"),)),
    Wound(
        "undeployed",
        WARNING,
        "started before version 2 of travel was deployed",
        (process(stages=RUNS_ALL), "update postroad.pipeline set version = 2, deployed_at = now()"),
    ),
    Wound("heartbeats", ERROR, "heartbeat does not reach Redis", (process(stages=RUNS_ALL),)),
    Wound(
        "ticks",
        WARNING,
        "of another server",
        ("update postroad.tick set system_identifier = system_identifier + 1",),
    ),
    Wound("ticks", WARNING, "clock of Postgres went back", ("update postroad.tick set made_at = now() + '1 hour'",)),
    Wound("ring", WARNING, "stay for another turn", (event("postroad.outbox_slot()", "38 days"),)),
    Wound("pruning", WARNING, "1 finished task", ()),
    Wound("pruning", WARNING, "the outbox in leaf ", (event("mod(postroad.outbox_slot() + 3, 8)", "33 days"),)),
    Wound(
        "pruning", WARNING, "ticks ought to be gone", ("update postroad.tick set made_at = now() - '40 d'::interval",)
    ),
    Wound(
        "paused",
        WARNING,
        "travel.ride has been paused for 3 h by ann",
        (
            "update postroad.stage set paused = true, switched_by = 'ann', switched_at = now() - interval '3 hours'"
            " where stage = 'ride'",
        ),
    ),
    Wound(
        "paused",
        OK,
        "travel.ride is paused for 6 min",
        (
            "update postroad.stage set paused = true, switched_by = 'ann', switched_at = now() - interval '6 min'"
            " where stage = 'ride'",
        ),
    ),
    Wound(
        "paused",
        ERROR,
        "travel.ride paused itself for 6 min: 410 Gone",
        (
            "update postroad.stage set paused = true, trouble = '410 Gone', switched_at = now() - interval '6 min'"
            " where stage = 'ride'",
        ),
    ),
    Wound(
        "paused",
        WARNING,
        "rests, for the 9th time in a row: 503",
        (
            "update postroad.stage set rests = 9, trouble = '503', resting_until = now() + interval '1 min'"
            " where stage = 'ride'",
        ),
    ),
    Wound("limits", ERROR, "'fast' is no rate", ("update postroad.stage set rate = 'fast' where stage = 'pack'",)),
    Wound("limits", WARNING, "that takes 2 d", ("update postroad.stage set rate = '1/d' where stage = 'pack'",)),
    Wound("oldest-ready", OK, "0.0 s at most", ("update postroad.task set created_at = now() - interval '20 min'",)),
    Wound(
        "oldest-ready",
        WARNING,
        "of 2 tasks ready for travel.pack the oldest has waited for 20 min",
        (process(stages=RUNS_ALL), "update postroad.task set created_at = now() - interval '20 min'"),
    ),
    Wound(
        "oldest-ready",
        ERROR,
        "waited for 3 h",
        (process(stages=RUNS_ALL), "update postroad.task set created_at = now() - interval '3 hours'"),
    ),
    Wound("dead-letters", OK, "10 dead letters in the last hour", (letters(5, "1 min"), letters(100, "5 hours"))),
    Wound("dead-letters", WARNING, "10 dead letters in the last hour", (letters(5, "1 min"), letters(5, "5 hours"))),
    Wound("dead-letters", ERROR, "1,000 dead letters in the last hour", (letters(500, "1 min"), letters(3000, "5 h"))),
    Wound("door-keys", OK, "there are no keys", ()),
    Wound("door-keys", OK, "1 good key", (key("shop", created="1 day"),)),
    Wound("door-keys", WARNING, "nobody gets in", (key("shop", created="1 day", revoked=True),)),
    Wound("door-keys", WARNING, "'shop'", (key("shop", created="1 day", ends="3 days", used=True),)),
    Wound("door-keys", WARNING, "never used in 30 d: shop", (key("shop", created="40 days"),)),
]
"""On a road with two tasks that have not begun."""


@pytest.mark.parametrize("wound", WOUNDS, ids=lambda wound: f"{wound.check} {wound.words}".replace(" ", "_"))
async def test_what_is_done_to_postgres_is_seen(road: Road, wound: Wound) -> None:
    await road.accept()
    await road.accept()
    if wound.words == "1 finished task":
        await road.complete(done := await road.accept())
        await road.ask(
            "update postroad.task set created_at = now() - interval '50 days', finished_at = now() - interval '50 days'"
            " where task_id = :id",
            id=done,
        )
    before = await saw(road.settings, wound.check)

    for statement in wound.statements:
        await road.ask(statement.replace(":", "\\:"))

    level, said = await saw(road.settings, wound.check)
    assert (level, wound.words in said) == (wound.level, True), said
    assert (level, said) != before or not wound.statements or level is OK


async def test_a_leaf_that_is_to_be_filled_again_must_be_empty(road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    await road.ask(event("mod(postroad.outbox_slot() + 1, 8)", "38 days"))
    monkeypatch.setattr(outbox, "PRUNED_LATE", timedelta())

    level, said = await saw(road.settings, "ring")

    assert level is WARNING
    assert "is not empty, and will be filled again in" in said


async def test_retries_that_go_on_for_ever_or_do_not_come_are_seen(road: Road) -> None:
    await road.ask(process(stages=RUNS_ALL))
    often, late, snoozing = [await road.accept() for _ in range(3)]
    for task_id, outcome in ((often, Retry("no horse")), (late, Retry("no horse")), (snoozing, Snooze(60))):
        await road.commit(task_id, "pack", outcome)
    assert (await saw(road.settings, "retries"))[0] is OK

    await road.ask("update postroad.stage_run set attempts = 60 where task_id = :id", id=often)
    await road.ask("update postroad.stage_run set next_retry_at = now() - interval '1 h' where task_id = :id", id=late)
    await road.ask("update postroad.task set created_at = now() - interval '3 days' where task_id = :id", id=snoozing)

    level, said = await saw(road.settings, "retries")
    assert level is WARNING
    assert "1 task failed 50 times or more at travel.pack (one 60 times)" in said
    assert "retries of travel.pack (1) have been due for more than 5 min" in said
    assert "travel.pack has asked for 1 task to be called again, for more than a day" in said


async def test_dead_letters_of_real_tasks_are_counted(road: Road) -> None:
    await die(road, "ride")

    assert await saw(road.settings, "dead-letters") == (
        OK,
        "1 dead letter in the last hour, 1 in a day; 1 of those are unresolved ",
    )


# Sessions of Postgres


@contextlib.contextmanager
def session(road: Road, *statements: LiteralString) -> Iterator[psycopg.Connection[Any]]:
    """A session of somebody else's, after these statements."""
    with contextlib.closing(psycopg.connect(road.settings.database_url, application_name="theirs")) as connection:
        for statement in statements:
            connection.execute(statement)
        yield connection


async def test_a_transaction_that_is_idle_is_seen(road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    with session(road, "select 1") as other:
        assert (await saw(road.settings, "idle-transactions"))[0] is OK
        monkeypatch.setattr(sessions, "IDLE", timedelta())
        level, said = await saw(road.settings, "idle-transactions")
        monkeypatch.setattr(sessions, "FORGOTTEN", timedelta())
        worse, _ = await saw(road.settings, "idle-transactions")
        assert f"session {other.info.backend_pid} of" in said

    assert (level, worse) == (WARNING, ERROR)
    assert "(theirs, database" in said


async def test_a_transaction_that_works_for_long_is_seen(road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "LONG", timedelta())
    with session(road) as other:
        sleeping = asyncio.create_task(asyncio.to_thread(other.execute, "select pg_sleep(60)"))

        async def is_seen() -> bool:
            level, said = await saw(road.settings, "long-transactions")
            return level is WARNING and f"session {other.info.backend_pid}" in said and "select pg_sleep(60)" in said

        try:
            await until(is_seen)
        finally:
            other.cancel_safe()
            with pytest.raises(psycopg.errors.QueryCanceled):
                await sleeping


async def test_a_transaction_that_was_prepared_and_forgotten_is_seen(
    road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"half {uuid4().hex}"
    with session(road, "create table theirs ()", f"prepare transaction '{name}'") as other:
        try:
            assert (await saw(road.settings, "prepared-transactions"))[0] is OK
            monkeypatch.setattr(sessions, "PREPARED", timedelta())
            level, said = await saw(road.settings, "prepared-transactions")
        finally:
            other.rollback()
            other.autocommit = True
            other.execute(f"rollback prepared '{name}'")

    assert level is ERROR
    assert f"rollback prepared '{name}'" in said


async def test_who_keeps_dead_rows_is_named(road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "HELD", 3)
    with session(road, "set transaction isolation level repeatable read", "select 1") as other:
        for _ in range(5):
            await road.accept()
        level, said = await saw(road.settings, "horizon")
        assert f"session {other.info.backend_pid} of" in said

    assert level is WARNING


async def test_a_replication_slot_that_nobody_reads_is_seen(road: Road) -> None:
    name = f"slot_{uuid4().hex[:8]}"
    await road.ask("select pg_create_physical_replication_slot(:name, true)", name=name)
    try:
        level, said = await saw(road.settings, "replication-slots")
    finally:
        await road.ask("select pg_drop_replication_slot(:name)", name=name)

    assert level is WARNING
    assert f"nobody reads the replication slot {name}" in said


async def test_dead_rows_and_bloat_are_seen(road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum, "LARGE", 1 << 20)
    monkeypatch.setattr(vacuum, "MANY_DEAD", 1000)
    with contextlib.closing(psycopg.connect(road.settings.database_url, autocommit=True)) as other:
        other.execute("alter table postroad.operation set (autovacuum_vacuum_threshold = 1000000)")
        other.execute(
            "insert into postroad.operation (by, action, target)"
            " select 'ann', 'nothing', repeat('x', 300) from generate_series(1, 20000)"
        )
        other.execute("analyze postroad.operation")
        before = await looked(road.settings, "autovacuum", "bloat")
        other.execute("delete from postroad.operation where operation_id % 20 <> 0")
        other.execute("select pg_stat_force_next_flush()")
        _, dead = await saw(road.settings, "autovacuum")
        other.execute("vacuum (analyze) postroad.operation")
    _, bloated = await saw(road.settings, "bloat")

    assert {result.level for result in before.values()} == {OK}
    assert "postroad.operation has 19,000 dead rows; its last vacuum was never" in dead
    assert "postroad.operation takes 7 MiB, its rows need about" in bloated


@pytest.mark.parametrize(("name", "expected"), [("XIDS", WARNING), ("XIDS_FAR", ERROR)])
async def test_a_database_that_nears_its_last_transaction_is_seen(
    road: Road, monkeypatch: pytest.MonkeyPatch, name: str, expected: Level
) -> None:
    assert (await saw(road.settings, "wraparound"))[0] is OK
    monkeypatch.setattr(vacuum, "XIDS", 1)
    monkeypatch.setattr(vacuum, name, 1)

    assert (await saw(road.settings, "wraparound"))[0] is expected


async def test_pools_that_do_not_fit_are_seen(road: Road) -> None:
    await road.ask(process())

    level, said = await saw(replace(road.settings, pool=1000), "connections")

    assert level is WARNING
    assert "1 process may take 1000 of" in said


async def test_a_replica_is_no_place_to_write(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    class Replica(NamedTuple):
        is_replica: bool = True

    async def row(self: Patient, statement: str) -> Replica:
        assert statement == "is_replica"
        return Replica()

    monkeypatch.setattr(Patient, "row", row)

    level, said = await saw(settings, "writable")

    assert level is ERROR
    assert "target_session_attrs=read-write" in said


async def test_a_pooler_that_keeps_no_session_is_an_error(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def connect(given: Settings, **_: Any) -> None:
        asked.append(given.database_url)
        raise SettingsError("it leads to a pooler")

    monkeypatch.setattr(postgres, "connect_psycopg", connect)

    level, said = await saw(replace(settings, direct_url="postgresql://direct/x"), "pooler")

    assert asked == ["postgresql://direct/x"]
    assert (level, "set DIRECT_URL" in said) == (ERROR, True)


@pytest.mark.parametrize(("ahead", "expected"), [(0.0, OK), (-5.0, WARNING), (600.0, ERROR)])
@pytest.mark.parametrize("server", ["postgres", "redis"])
async def test_clocks_that_differ_are_seen(settings: Settings, server: str, ahead: float, expected: Level) -> None:
    level, said = await saw(settings, f"{server}-clock", clock=lambda: time.time() + ahead)

    assert level is expected
    assert "ahead of this machine's" in said or ahead >= 0
    assert "behind this machine's" in said or ahead <= 0


# Roles


@pytest.fixture
async def guest(road: Road) -> AsyncIterator[Settings]:
    """The settings of a role that may log in, and nothing else."""
    name = f"guest_{uuid4().hex[:8]}"
    await road.ask(f"create role {name} login password 'secret'")
    server = road.settings.database_url.partition("@")[2]
    try:
        yield replace(road.settings, database_url=f"postgresql://{name}:secret@{server}")
    finally:
        await road.ask(f"drop owned by {name}")
        await road.ask(f"drop role {name}")


async def test_what_may_not_be_seen_is_told_and_the_rest_is_looked_at(guest: Settings) -> None:
    found = await looked(guest)

    assert found["revision"].level is UNKNOWN
    assert "permission denied for schema postroad" in found["revision"].findings[0].saw
    assert "grant" in found["revision"].findings[0].do
    assert found["writable"].level is OK
    assert found["redis-answers"].level is OK
    assert "cannot be seen" in found["idle-transactions"].findings[0].saw


async def test_a_role_that_only_reads_sees_nearly_all_and_lacks_rights_for_a_process(
    guest: Settings, road: Road
) -> None:
    name = guest.database_url.partition("//")[2].partition(":")[0]
    await road.ask(f"grant usage on schema postroad to {name}")
    await road.ask(f"grant select on all tables in schema postroad to {name}")

    found = await looked(guest)

    assert {name for name, result in found.items() if result.level is UNKNOWN} == {"idle-transactions"}
    said = [finding.do for finding in found["grants"].findings]
    assert f"grant insert on postroad.tick to {name}" in said
    assert f"grant insert, update on postroad.stage_run to {name}" in said


async def test_nothing_can_be_written(settings: Settings) -> None:
    patient = Patient(settings)
    try:
        async with patient.connection() as connection:
            with pytest.raises(DBAPIError, match="read-only transaction"):
                await connection.exec_driver_sql("delete from postroad.tick")
            await connection.rollback()
    finally:
        await patient.aclose()


# Redis


@pytest.fixture
async def line(settings: Settings) -> AsyncIterator[Line]:
    """A relay, and a pipeline of one stage; no worker yet."""
    pipeline = Pipeline("travel")

    @pipeline.stage()
    async def pack(task: Task) -> None: ...

    async with open_line(settings, pipeline) as opened:

        async def is_up() -> bool:
            return await opened.has_stream("pack") and bool(
                await opened.road.ask("select from postroad.process where is_leading")
            )

        await until(is_up)
        yield opened


async def end_relay(line: Line) -> None:
    """End the relay, as a person would; ``line.relay()`` starts another."""
    relaying, line._relaying = line._relaying, None
    assert relaying is not None
    relaying.cancel()
    await asyncio.wait([relaying])


@contextlib.asynccontextmanager
async def configured(line: Line, **options: str) -> AsyncIterator[None]:
    """Redis with these settings, and afterwards as it was."""
    before = {name: (await line.client.config_get(name.replace("_", "-"))) for name in options}
    try:
        for name, value in options.items():
            await line.client.config_set(name.replace("_", "-"), value)
        yield
    finally:
        for known in before.values():
            for option, former in known.items():
                await line.client.config_set(str(option), former or "")


async def test_a_deployment_at_work_is_well(line: Line) -> None:
    worker = line.work()
    await line.submit(1, 2, 3)
    await line.are_finished()

    async def is_registered() -> bool:
        return bool(await line.road.ask("select from postroad.process where role = 'stage'"))

    await until(is_registered)
    found = await looked(line.settings)
    await line.stop(worker)

    not_well = {name: result.findings for name, result in found.items() if result.level is not OK}
    # The servers of the tests may lose all when their machine does, and there is no intake.
    assert not_well.keys() <= {"durability", "persistence", "intake"}
    assert found["heartbeats"].findings[0].saw == "heartbeats of 1 worker reach Redis"
    assert list(found) == [check.name for check in CHECKS]


async def test_a_policy_that_evicts_streams_is_seen(line: Line) -> None:
    for policy, limit, expected in (
        ("volatile-lru", "0", OK),
        ("allkeys-lru", "0", WARNING),
        ("allkeys-lfu", "1gb", ERROR),
    ):
        async with configured(line, maxmemory_policy=policy, maxmemory=limit):
            level, said = await saw(line.settings, "eviction")
        assert level is expected
        assert policy in said or expected is OK


async def test_memory_that_is_nearly_full_is_seen(line: Line) -> None:
    used = int((await line.client.info("memory"))["used_memory"])
    async with configured(line, maxmemory=str(int(used / 0.87))):
        level, said = await saw(line.settings, "memory")

    assert level is WARNING
    assert "raise maxmemory" in said


async def test_a_redis_that_forgets_is_seen(line: Line) -> None:
    async with configured(line, save="", appendonly="no"):
        forgets = await saw(line.settings, "persistence")
    async with configured(line, save="3600 1"):
        remembers = await saw(line.settings, "persistence")

    assert (forgets[0], remembers[0]) == (WARNING, OK)


async def test_what_a_server_says_of_itself_is_judged(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes more servers to provoke than there are here."""
    said: dict[str, Any] = {}

    async def info(self: Patient, node: object) -> dict[str, Any]:
        return said

    monkeypatch.setattr(Patient, "info", info)
    for told, check, expected, words in (
        ({"role": "slave"}, "redis-role", ERROR, "is a replica"),
        ({"role": "master", "loading": 1}, "redis-role", WARNING, "is loading"),
        ({"rdb_last_bgsave_status": "err"}, "persistence", ERROR, "cannot write to its disk"),
        ({"cluster_enabled": 1}, "shards", ERROR, "redis+cluster://"),
        ({"redis_version": "6.0.9"}, "redis-version", ERROR, "Redis 6.0.9"),
        ({"redis_version": "6.2.14"}, "redis-version", WARNING, "not tested on Redis 6.2.14"),
        ({"redis_version": "7.0.15"}, "redis-version", OK, "Redis 7.0.15"),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.5"}, "redis-version", WARNING, "Valkey 7.2.5"),
        ({"used_memory": 70, "maxmemory": 0, "total_system_memory": 100}, "memory", WARNING, "set maxmemory"),
        ({}, "eviction", UNKNOWN, "does not say"),
    ):
        said = told
        level, sentence = await saw(settings, check)
        assert (level, words in sentence) == (expected, True), sentence


async def test_streams_and_groups_that_are_gone_or_strange_are_seen(line: Line) -> None:
    stream = line.stream("pack")
    await end_relay(line)
    await line.client.xgroup_create(stream, "theirs", id="0")
    level, said = await saw(line.settings, "groups")
    assert (level, "other groups than ours, which miss what is deleted: theirs" in said) == (WARNING, True)

    await line.client.xgroup_destroy(stream, "travel.pack")
    level, said = await saw(line.settings, "groups")
    assert level is ERROR
    assert "the stream of travel.pack, or its group, is gone" in said


async def test_markers_that_lead_nowhere_are_seen(line: Line) -> None:
    marker = line.keys.marker(0)
    await end_relay(line)
    assert (await saw(line.settings, "markers"))[0] is OK
    for text, words in (("17:end", "names tick 17, which Postgres"), ("hello", "'hello', which is none")):
        await line.client.set(marker, text)
        level, said = await saw(line.settings, "markers")
        assert (level, words in said) == (ERROR, True)
    await line.client.delete(marker)
    assert "the marker of shard 0 is missing" in (await saw(line.settings, "markers"))[1]


async def test_keys_of_others_and_of_the_past_are_seen(line: Line) -> None:
    prefix = line.settings.prefix
    names = ("unknown-keys", "left-over-streams", "shards", "heartbeats")
    before = await looked(line.settings, *names)
    assert {result.level for result in before.values()} == {OK}

    await line.client.set(f"{prefix}:theirs", 1)
    await line.client.set(f"{prefix}:{{5}}:marker", 1)
    await line.client.set(f"{prefix}:{{0}}:alive:old:1:bbbbbbbb", 1)
    await line.client.xadd(f"{prefix}:{{0}}:travel.fly:stream", {"a": 1})
    after = await looked(line.settings, *names)

    said = {name: (result.level, result.findings[0].saw) for name, result in after.items()}
    assert said["unknown-keys"] == (WARNING, f"1 key of nobody that we know under the prefix {prefix}: {prefix}:theirs")
    assert said["left-over-streams"] == (WARNING, "there is 1 key of travel.fly, which is no stage in force")
    assert said["shards"][0] is ERROR
    assert "keys of shard 5" in said["shards"][1]
    assert said["heartbeats"] == (WARNING, "old:1:bbbbbbbb works, and is not in the registry")


async def test_entries_that_a_dead_worker_holds_are_seen(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    await line.submit(None)
    await line.abandon("pack", consumer=WORKER, deliveries=1, count=1)
    assert (await saw(line.settings, "dead-consumers"))[0] is OK

    monkeypatch.setattr(streams, "LEASES", 0)
    level, said = await saw(line.settings, "dead-consumers")
    assert level is WARNING
    assert f"{WORKER}, which is dead, has held 1 of travel.pack" in said

    await line.road.ask(process(stages="{travel.pack}", name="other"))
    assert (await saw(line.settings, "dead-consumers"))[0] is ERROR


async def test_scripts_of_ours_that_were_slow_are_seen(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await saw(line.settings, "slow-scripts"))[0] is OK
    monkeypatch.setattr(redis, "SLOW", 0.0)
    async with configured(line, slowlog_log_slower_than="0"):
        await line.client.eval("return redis.call('get', KEYS[1])", 1, line.keys.marker(0))
        level, said = await saw(line.settings, "slow-scripts")

    assert level is WARNING
    assert "of ours in the last hour" in said


async def test_events_that_do_not_reach_redis_are_seen(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    await end_relay(line)
    await line.submit(1, 2)
    for name in ("LATE", "TICKLESS"):
        monkeypatch.setattr(outbox, name, 0.0)

    async def both() -> dict[str, tuple[Level, str]]:
        found = await looked(line.settings, "unpublished", "ticks")
        return {name: (result.level, result.findings[0].saw) for name, result in found.items()}

    said = await both()
    assert said["ticks"][0] is ERROR
    assert said["unpublished"][0] is ERROR
    assert "of 2 events not yet in Redis the oldest is" in said["unpublished"][1]

    line.relay()

    async def are_published() -> bool:
        return {level for level, _ in (await both()).values()} == {OK}

    await until(are_published)
    assert (await both())["unpublished"][1] == "every event has reached Redis"


async def test_a_relay_that_hangs_is_told_from_one_that_is_not_there(line: Line) -> None:
    assert (await saw(line.settings, "relay"))[0] is OK
    # As another session sees it, for as long as the relay does not write again.
    await line.road.ask("alter table postroad.process rename to elsewhere")
    await line.road.ask("create table postroad.process (like postroad.elsewhere including all)")
    await line.road.ask("alter table postroad.elsewhere rename to registry")
    level, said = await saw(line.settings, "relay")
    assert (level, "a relay works, and is not in the registry" in said) == (UNKNOWN, True)


# The command


Run = Callable[..., tuple[object, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``postroad doctor`` with some settings; returns its exit code and what it prints."""

    def run(settings: Settings, *arguments: str) -> tuple[object, str]:
        for name in os.environ:
            if name.startswith("POSTROAD_"):
                monkeypatch.delenv(name)
        for name, value in settings.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["postroad", "doctor", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("away", "untouched"), [("database_url", {"redis-answers", "eviction"}), ("redis_url", {"revision", "intake"})]
)
def test_a_server_that_is_away_does_not_keep_the_other_from_being_looked_at(
    away: str, untouched: set[str], settings: Settings, run: Run
) -> None:
    scheme = "postgresql" if away == "database_url" else "redis"
    elsewhere: Any = {away: f"{scheme}://me:secret@127.0.0.1:1/0"}

    code, out = run(replace(settings, **elsewhere), "--json")

    document = json.loads(out)
    by_name = {check["check"]: check for check in document["checks"]}
    first = "postgres-answers" if away == "database_url" else "redis-answers"
    assert (code, document["status"]) == (69, "error")
    assert by_name[first]["status"] == "error"
    assert "does not answer" in by_name[first]["findings"][0]["saw"]
    assert "secret" not in out
    assert "unknown" not in {by_name[name]["status"] for name in untouched}
    assert sum(check["status"] == "unknown" for check in document["checks"]) > 10


def test_the_command_ends_with_what_it_found(settings: Settings, run: Run) -> None:
    code, out = run(settings, "--verbose")

    assert code == 5  # there is no relay
    (line,) = [line for line in out.splitlines() if "no relay lives" in line]
    assert line.split()[:2] == ["error", "relay"]
    for check in CHECKS:
        assert check.name in out
    assert out.splitlines()[-1].startswith(f"{len(CHECKS)} checks: ")
