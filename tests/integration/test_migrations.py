"""The tables: made once, however often and by however many; in any schema; as the metadata say."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from psycopg.sql import SQL, Identifier, Literal
from sqlalchemy import Column, Connection, create_engine
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import SchemaItem

from postroad.core.database import (
    REVISION,
    current_revision,
    in_schema,
    metadata,
    outbox_table,
    sqlalchemy_url,
    tick_table,
)
from postroad.core.servers import Servers
from postroad.migrations import head, upgrade, upgrade_sql

CATALOG = """
select 'relation', c.relname, '', c.relkind::text, array_to_string(c.reloptions, ','),
       obj_description(c.oid, 'pg_class')
  from pg_class c where c.relnamespace = %(schema)s::regnamespace
union all
select 'column', c.relname, a.attname,
       concat_ws(' ', a.attnum, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity),
       pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum)
  from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
  left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
 where c.relnamespace = %(schema)s::regnamespace
union all
select 'constraint', r.conrelid::regclass::text, r.conname, r.contype::text, pg_get_constraintdef(r.oid), ''
  from pg_constraint r where r.connamespace = %(schema)s::regnamespace
union all
select 'index', i.indrelid::regclass::text, i.indexrelid::regclass::text, '', pg_get_indexdef(i.indexrelid), ''
  from pg_index i join pg_class c on c.oid = i.indexrelid where c.relnamespace = %(schema)s::regnamespace
union all
select 'partition', i.inhparent::regclass::text, i.inhrelid::regclass::text, '', pg_get_expr(c.relpartbound, c.oid), ''
  from pg_inherits i join pg_class c on c.oid = i.inhrelid where c.relnamespace = %(schema)s::regnamespace
union all
select 'function', p.proname, '', '', pg_get_functiondef(p.oid), obj_description(p.oid, 'pg_proc')
  from pg_proc p where p.pronamespace = %(schema)s::regnamespace
union all
select 'trigger', t.tgrelid::regclass::text, t.tgname, '', pg_get_triggerdef(t.oid), ''
  from pg_trigger t join pg_class c on c.oid = t.tgrelid where c.relnamespace = %(schema)s::regnamespace
   and not t.tgisinternal
 order by 1, 2, 3, 4, 5
"""
"""All that a migration makes, as text, for comparison."""


@pytest.fixture
def bare(servers: Servers) -> Iterator[str]:
    """The URL of a fresh database without our tables."""
    name = f"postroad_bare_{uuid.uuid4().hex[:12]}"
    parts = urlsplit(servers.database_url)
    with psycopg.connect(servers.database_url, autocommit=True) as connection:
        connection.execute(SQL("create database {} template template0").format(Identifier(name)))
        yield urlunsplit(parts._replace(scheme="postgresql", path=f"/{name}"))
        connection.execute(SQL("drop database {} with (force)").format(Identifier(name)))


def ask(url: str, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement.encode(), parameters or None).fetchall()


def catalog(url: str, schema: str = "postroad") -> list[tuple[Any, ...]]:
    """What is in ``schema``, as if that were called postroad."""
    return [
        tuple(str(cell).replace(f"{schema}.", "postroad.") for cell in row) for row in ask(url, CATALOG, schema=schema)
    ]


def revision(url: str, schema: str = "postroad") -> str | None:
    engine = create_engine(sqlalchemy_url(url))
    try:
        with engine.connect() as connection:
            return current_revision(connection, schema)
    finally:
        engine.dispose()


def test_a_database_that_was_never_migrated_has_no_revision(bare: str) -> None:
    assert revision(bare) is None


def test_an_upgrade_leads_to_the_revision_that_the_code_needs(bare: str) -> None:
    upgrade(bare)

    assert revision(bare) == head() == REVISION
    assert revision(bare, "other") is None


def test_a_second_upgrade_does_nothing(bare: str) -> None:
    upgrade(bare)
    before = (
        catalog(bare),
        ask(bare, "select * from postroad.tick"),
        ask(bare, "select xmin from pg_class order by oid"),
    )

    upgrade(bare)

    after = catalog(bare), ask(bare, "select * from postroad.tick"), ask(bare, "select xmin from pg_class order by oid")
    assert after == before


UPGRADES = """
import os, sys
from postroad.migrations import upgrade

children = []
for _ in range(int(sys.argv[2])):
    children.append(os.fork())
    if children[-1] == 0:
        upgrade(sys.argv[1])
        os._exit(0)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""
"""Upgrades in processes of their own, since Alembic is made for one at a time in a process."""


@pytest.mark.parametrize("several", [2, 5])
def test_several_upgrades_at_once_make_one(several: int, bare: str) -> None:
    result = subprocess.run([sys.executable, "-c", UPGRADES, bare, str(several)], capture_output=True, timeout=60)

    assert (result.returncode, result.stderr) == (0, b"")
    assert revision(bare) == head()
    assert ask(bare, "select tick, snapshot::text from postroad.tick") == [(0, "3:3:")]


def test_an_upgrade_waits_for_the_one_that_runs(bare: str) -> None:
    with psycopg.connect(bare) as other:
        other.execute("select pg_advisory_xact_lock(hashtextextended('postroad.migrate', 0))")
        child = subprocess.Popen([sys.executable, "-c", UPGRADES, bare, "1"])
        while not ask(bare, "select from pg_locks where locktype = 'advisory' and not granted"):
            assert child.poll() is None
        assert ask(bare, "select to_regnamespace('postroad')") == [(None,)]

    assert child.wait(timeout=60) == 0
    assert revision(bare) == head()


def test_the_tables_can_have_another_schema_beside_the_usual_one(bare: str) -> None:
    upgrade(bare)
    upgrade(bare, "other_road")

    assert revision(bare, "other_road") == head()
    assert catalog(bare, "other_road") == catalog(bare)


def test_rows_of_one_schema_are_none_of_another(bare: str) -> None:
    upgrade(bare)
    upgrade(bare, "other_road")

    with psycopg.connect(bare, autocommit=True) as connection:
        connection.execute(
            "insert into other_road.outbox (task_id, pipeline, type) values (gen_random_uuid(), 'road', 'TaskCreated')"
        )

    assert ask(bare, "select count(*) from other_road.outbox") == [(1,)]
    assert ask(bare, "select count(*) from postroad.outbox") == [(0,)]


@pytest.mark.parametrize("schema", ["postroad", "other_road"])
def test_the_sql_for_those_who_run_it_by_hand_makes_the_same(schema: str, bare: str, database: str) -> None:
    script = upgrade_sql(schema)

    with psycopg.connect(bare, autocommit=True) as connection:
        connection.execute(script.encode())

    assert revision(bare, schema) == head()
    assert catalog(bare, schema) == catalog(database)
    assert ask(bare, in_schema("select tick, snapshot::text from postroad.tick", schema)) == [(0, "3:3:")]
    upgrade(bare, schema)


def test_a_role_that_may_not_create_schemas_is_content_with_an_empty_one(bare: str) -> None:
    role = f"postroad_role_{uuid.uuid4().hex[:12]}"
    parts = urlsplit(bare)
    with psycopg.connect(bare, autocommit=True) as connection:
        connection.execute(SQL("create role {} login password {}").format(Identifier(role), Literal("pass")))
        connection.execute(SQL("create schema postroad authorization {}").format(Identifier(role)))
        try:
            url = urlunsplit(parts._replace(netloc=f"{role}:pass@{parts.netloc.rpartition('@')[2]}"))
            upgrade(url)
            upgrade(url)
            assert revision(url) == head()
        finally:
            connection.execute(SQL("drop owned by {}").format(Identifier(role)))
            connection.execute(SQL("drop role {}").format(Identifier(role)))


def test_a_failed_upgrade_leaves_nothing(bare: str) -> None:
    with psycopg.connect(bare, autocommit=True) as connection:
        connection.execute("create schema postroad")
        connection.execute("create table postroad.dead_letter (foreign_table int)")  # one of the last to be made

    with pytest.raises(Exception, match="already exists"):
        upgrade(bare)

    assert ask(bare, "select relname from pg_class where relnamespace = 'postroad'::regnamespace") == [("dead_letter",)]
    assert revision(bare) is None


def test_the_metadata_name_the_tables_and_columns_that_are_there(database: str) -> None:
    rows = ask(
        database,
        """
        select c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity::text = 'a',
               coalesce(a.attnum = any (i.indkey), false)
          from pg_class c
          join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
          left join pg_index i on i.indrelid = c.oid and i.indisprimary
         where c.relnamespace = 'postroad'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
           and c.relname <> 'alembic_version'
         order by c.relname, a.attnum
        """,
    )

    declared = [
        (table.name, column.name, type_name(column), not column.nullable, bool(column.identity), column.primary_key)
        for table in sorted(metadata.tables.values(), key=lambda table: table.name)
        for column in table.columns
    ]
    assert rows == declared


def type_name(column: Column[Any]) -> str:
    return column.type.compile(postgresql.dialect()).lower()  # type: ignore[no-untyped-call]


def test_alembic_finds_no_difference_in_tables_and_columns(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for column in (outbox_table.c.xid, tick_table.c.snapshot):
        # SQLAlchemy knows no such type when it reads a table.
        monkeypatch.setitem(postgresql.base.ischema_names, type_name(column), lambda column=column: column.type)

    def is_ours(
        item: SchemaItem, name: str | None, kind: str, is_reflected: bool, compared_to: SchemaItem | None
    ) -> bool:
        return kind in ("table", "column") and not (name or "").startswith(("outbox_", "alembic_"))

    engine = create_engine(sqlalchemy_url(database))
    try:
        with engine.connect() as connection:
            assert flat(differences(connection, is_ours)) == []
            connection.exec_driver_sql("alter table postroad.task alter payload drop not null, add extra int")
            found = {difference[0] for difference in flat(differences(connection, is_ours))}
            assert found == {"modify_nullable", "remove_column"}, "and it would find one"
    finally:
        engine.dispose()


def differences(connection: Connection, include_object: Any) -> list[Any]:
    options = {"include_schemas": True, "compare_type": True, "include_object": include_object}
    found: list[Any] = compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
    return found


def flat(found: list[Any]) -> list[tuple[Any, ...]]:
    """One tuple for each difference, without those in comments: the migrations alone hold them."""
    single = [each for entry in found for each in (entry if isinstance(entry, list) else [entry])]
    return [each for each in single if "comment" not in each[0]]


def test_the_ring_of_leaves_takes_events_of_any_time(database: str) -> None:
    event = "insert into postroad.outbox (task_id, pipeline, type) select gen_random_uuid(), 'road', 'X'"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(event)
        connection.execute(event.replace("type) select", "type, slot) select") + ", generate_series(0, 7)")

    assert ask(database, "select count(*), count(distinct slot) from postroad.outbox") == [(9, 8)]
    leaves = ask(database, "select tableoid::regclass::text from postroad.outbox group by 1 order by 1")
    assert leaves == [(f"postroad.outbox_{slot}",) for slot in range(8)]
    assert ask(database, "select postroad.outbox_slot() = mod(extract(epoch from now())::bigint / 432000, 8)") == [
        (True,)
    ]
