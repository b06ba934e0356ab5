"""Servers for tests, and on them a place for each test: a fresh database copied from a template, a fresh key prefix."""

import contextlib
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import LiteralString
from urllib.parse import urlsplit, urlunsplit

import psycopg
import psycopg.sql
import redis

from ..core import servers as core_servers
from ..core.errors import RefusedError, SettingsError
from ..core.servers import Servers
from ..migrations import upgrade

CLOSING = 2.0
"""Seconds that connections have to end after they were closed."""

Migration = Callable[[str], object]
"""Makes the author's own tables in the database whose URL it is given."""


@contextlib.contextmanager
def servers(environ: Mapping[str, str] | None = None) -> Iterator[Servers]:
    """Postgres and Redis for tests: those of DATABASE_URL and REDIS_URL, or an embedded pair that ends with the block.

    Nothing that the servers hold is touched: each test gets a database and a key prefix of its own, so the role must be
    allowed to create databases. ``postroad.toml`` is not read: it may name servers that are no place for tests.
    ``environ`` is ``os.environ`` unless given. Starting takes seconds, and blocks.

    Raises ``SettingsError`` if one URL alone is set, or if REDIS_URL names a cluster or sentinels;
    ``EmbeddedServersMissing`` and ``ServerStartError`` like ``core.servers.embedded``.
    """
    variables = os.environ if environ is None else environ
    database_url, redis_url = variables.get("DATABASE_URL"), variables.get("REDIS_URL")
    if database_url and redis_url:
        if "+" in redis_url.partition("://")[0]:
            raise SettingsError("REDIS_URL: tests run on one server, redis://…, not on a cluster or sentinels")
        yield Servers(database_url, redis_url)
        return
    if database_url or redis_url:
        missing = "REDIS_URL" if database_url else "DATABASE_URL"
        raise SettingsError(f"{missing} is not set: name both servers, or neither to have embedded ones")
    with (
        tempfile.TemporaryDirectory(prefix="postroad-testing-") as folder,
        core_servers.embedded(folder, fsync=False, appendonly=False) as pair,
    ):
        yield pair


@contextlib.contextmanager
def template(pair: Servers, migration: Migration | None = None) -> Iterator[str]:
    """The name of a database with our tables, and those of ``migration``, to copy from; dropped after the block."""
    name = f"postroad_template_{uuid.uuid4().hex[:12]}"
    try:
        _administer(pair, "create database {}", name)
    except psycopg.errors.InsufficientPrivilege as error:
        raise RefusedError(f"the role of DATABASE_URL must be allowed to create databases: {error}") from error
    try:
        upgrade(database_url(pair, name))
        if migration is not None:
            migration(database_url(pair, name))
            _wait_until_left(pair, name)
        yield name
    finally:
        _administer(pair, "drop database {} with (force)", name)


@contextlib.contextmanager
def fresh_database(pair: Servers, copied_from: str) -> Iterator[str]:
    """The URL of a copy of a template, dropped after the block."""
    name = f"postroad_test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(database_url(pair), autocommit=True) as connection:
        (fsync,) = connection.execute("show fsync").fetchone() or ("on",)
    # The default spares a server the checkpoint. One that does not wait for its disk makes that in no time, and copies
    # files in a fifth of the time that it takes to copy pages by way of the log.
    by_log, by_files = "create database {} template {}", "create database {} template {} strategy file_copy"
    _administer(pair, by_log if fsync == "on" else by_files, name, copied_from)
    try:
        yield database_url(pair, name)
    finally:
        _administer(pair, "drop database {} with (force)", name)


@contextlib.contextmanager
def fresh_prefix(pair: Servers) -> Iterator[str]:
    """A prefix for Redis keys that nobody uses; whatever begins with it is deleted after the block."""
    prefix = f"test-{uuid.uuid4().hex[:12]}"
    try:
        yield prefix
    finally:
        with redis.Redis.from_url(pair.redis_url) as client:
            for key in client.scan_iter(match=f"{prefix}*", count=1000):
                client.unlink(key)


def database_url(pair: Servers, name: str | None = None) -> str:
    """The URL of database ``name`` on the servers, by default of the one that they were given with."""
    parts = urlsplit(pair.database_url)
    return urlunsplit(parts._replace(scheme="postgresql", path=parts.path if name is None else f"/{name}"))


def _wait_until_left(pair: Servers, name: str) -> None:
    """Return once nobody is connected to the database: Postgres copies none that is in use."""
    ends_at = time.monotonic() + CLOSING
    with psycopg.connect(database_url(pair), autocommit=True) as connection:
        while connection.execute("select from pg_stat_activity where datname = %s", [name]).rowcount:
            if time.monotonic() > ends_at:
                raise RefusedError(
                    "the migration has left connections open, and the database cannot be copied:"
                    " let it close them (connection.close(), engine.dispose())"
                )
            time.sleep(0.01)


def _administer(pair: Servers, statement: LiteralString, *names: str) -> None:
    identifiers = map(psycopg.sql.Identifier, names)
    with psycopg.connect(database_url(pair), autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL(statement).format(*identifiers))
