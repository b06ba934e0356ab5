"""Connect, or say in one line why not."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from psycopg.errors import InsufficientPrivilege
from redis.exceptions import RedisError
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.backoff import Pause
from ..core.broker import Clients
from ..core.database import REVISION, current_revision, lost_connection, make_engine, sqlalchemy_url
from ..core.errors import RefusedError, SchemaError, UnreachableError, first_line
from ..core.settings import Settings, masked

log = logging.getLogger(__name__)


@asynccontextmanager
async def connection(settings: Settings, *, isolation: str = "READ COMMITTED") -> AsyncIterator[AsyncConnection]:
    """A transaction for a command, committed at the end. Raises ``UnreachableError`` and ``SchemaError``."""
    await asyncio.to_thread(check_schema, settings)
    engine = make_engine(settings, application="postroad", pool=3)
    try:
        with translated(settings):
            async with engine.execution_options(isolation_level=isolation).begin() as opened:
                yield opened
    finally:
        await engine.dispose()


def check_schema(settings: Settings) -> None:
    """Raise ``SchemaError`` unless the tables are those of this version, ``UnreachableError`` if Postgres is away."""
    engine = create_engine(sqlalchemy_url(settings.database_url), connect_args={"connect_timeout": 5})
    try:
        with translated(settings), engine.connect() as opened:
            current = current_revision(opened, settings.schema)
    finally:
        engine.dispose()
    if current != REVISION:
        found = f"is at revision {current}" if current else "has no tables of postroad"
        raise SchemaError(f"schema {settings.schema!r} {found}, this version needs {REVISION}: run postroad migrate")


async def wait_for_postgres(settings: Settings) -> None:
    """Return once Postgres answers and has our tables; say what is waited for. Raises ``SchemaError``."""
    pause = Pause()
    while True:
        try:
            await asyncio.to_thread(check_schema, settings)
            return
        except UnreachableError as error:
            if pause.is_worth_a_line():
                log.warning("waiting for %s: %s", error.server, error.reason)
        await asyncio.sleep(pause.next())


async def wait_for_redis(settings: Settings) -> None:
    """Return once Redis, of a cluster any shard, answers; say what is waited for."""
    pause = Pause()
    clients = Clients(settings, connections=1)
    try:
        for shard in itertools.cycle(range(settings.shards)):
            try:
                await clients.of(shard).ping()
                return
            except (RedisError, OSError) as error:
                if pause.is_worth_a_line():
                    log.warning("waiting for Redis at %s: %s", masked(settings.redis_url), first_line(error))
            await asyncio.sleep(pause.next())
    finally:
        await clients.aclose()


@contextmanager
def translated(settings: Settings) -> Iterator[None]:
    """What a driver says that the user can do something about, as an error of ours without the password."""
    server = f"Postgres at {masked(settings.database_url)}"
    try:
        yield
    except Exception as error:
        if lost_connection(error):
            raise UnreachableError(server, first_line(error)) from error
        if isinstance(error, DBAPIError) and isinstance(error.orig, InsufficientPrivilege):
            raise RefusedError(f"{server} refuses: {first_line(error.orig)}") from error
        raise
