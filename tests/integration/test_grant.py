"""What a role may do that was let in to look."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege
from psycopg.sql import SQL, Identifier, Literal
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from postroad.core.database import make_engine, metadata
from postroad.core.errors import NotFoundError
from postroad.intake.lookup import find_task
from postroad.outbox.audit import audit, journey
from postroad.outbox.grant import SECRETS, VIEWS, grant_read
from tests.integration.road import Road, die


@pytest.fixture
async def reader(road: Road) -> AsyncIterator[AsyncEngine]:
    """The connections of a role that was granted to read, twice, and nothing else."""
    role = f"reader_{uuid.uuid4().hex[:12]}"
    url = road.settings.database_url
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SQL("create role {} login password {}").format(Identifier(role), Literal("pass")))
        try:
            for _ in range(2):
                async with road.engine.begin() as granting:
                    await grant_read(granting, role, "postroad")
            parts = urlsplit(url)
            own = urlunsplit(parts._replace(netloc=f"{role}:pass@{parts.netloc.rpartition('@')[2]}"))
            engine = make_engine(replace(road.settings, database_url=own), application="postroad tests", pool=3)
            yield engine
            await engine.dispose()
        finally:
            connection.execute(SQL("drop owned by {}").format(Identifier(role)))
            connection.execute(SQL("drop role {}").format(Identifier(role)))


async def may(reader: AsyncEngine, statement: str) -> bool:
    """Whether Postgres lets the role do this."""
    async with reader.connect() as connection:
        try:
            await connection.exec_driver_sql(statement)
        except DBAPIError as error:
            if not isinstance(error.orig, InsufficientPrivilege):
                raise
            return False
    return True


async def test_a_reader_sees_every_view_and_every_column_but_the_secrets(reader: AsyncEngine) -> None:
    readable = {f"table postroad.{view}": True for view in VIEWS} | {
        f'select "{column.name}" from postroad."{table.name}"': (table.name, column.name) not in SECRETS  # noqa: S608
        for table in metadata.tables.values()
        for column in table.columns
    }

    assert {statement: await may(reader, statement) for statement in readable} == readable
    assert list(readable.values()).count(False) == len(SECRETS) == 3


async def test_a_reader_writes_nothing(reader: AsyncEngine) -> None:
    for table in metadata.tables.values():
        for statement in (f"delete from postroad.{table.name}", f"insert into postroad.{table.name} default values"):  # noqa: S608
            assert not await may(reader, statement)
    assert not await may(reader, "select postroad.submit('travel', '1')")


async def test_what_people_ask_is_answered_as_a_reader(road: Road, reader: AsyncEngine) -> None:
    task_id = await die(road, "ride")

    async with reader.connect() as connection:
        task = await find_task(connection, task_id, "postroad")
        steps = await journey(connection, task_id, "postroad")
        findings = await audit(connection, "postroad")

    assert task is not None
    assert (task["status"], len(steps)) == ("failed", 4)
    assert [finding.violations for finding in findings] == [0] * len(findings)


async def test_nobody_is_let_in_who_is_not_there(road: Road) -> None:
    async with road.engine.connect() as connection:
        with pytest.raises(NotFoundError, match="no role 'nobody at all'"):
            await grant_read(connection, "nobody at all", "postroad")
