"""Postgres: the engine, our tables, and how the ``.sql`` files are run.

The statements in the ``.sql`` files are plain SQL that can be pasted into psql: they name tables as ``postroad.task``,
and ``Statements`` puts the configured schema in that place. Parameters are psycopg's ``%(name)s``.
"""

import asyncio
import contextlib
import logging
import re
from functools import cache
from importlib.resources import files
from typing import Any

import psycopg
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Identity,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    Uuid,
    event,
    func,
    literal_column,
    select,
    table,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, TIMESTAMP
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.types import UserDefinedType

from .errors import SettingsError, UnreachableError
from .settings import Settings, masked

log = logging.getLogger(__name__)

SCHEMA = "postroad"
"""The schema as the ``.sql`` files and the metadata spell it; translated to the configured one when run."""


REVISION = "0008"
"""The revision of our tables that this code needs: the newest migration."""


class _Named(UserDefinedType[Any]):
    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        return self.name


metadata = MetaData(schema=SCHEMA)
_moment = TIMESTAMP(timezone=True)

pipeline_table = Table(
    "pipeline",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("definition", JSONB, nullable=False),
    Column("version", Integer, nullable=False),
    Column("deployed_at", _moment, nullable=False),
    Column("priorities", Boolean, nullable=False),
)
stage_table = Table(
    "stage",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("stage", Text, primary_key=True),
    Column("after", ARRAY(Text), nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("rate", Text),
    Column("burst", Integer),
    Column("max_running", Integer),
    Column("resting_until", _moment),
    Column("rests", Integer, nullable=False),
    Column("trouble", Text),
    Column("switched_by", Text),
    Column("switched_at", _moment),
)
task_table = Table(
    "task",
    metadata,
    Column("task_id", Uuid, primary_key=True),
    Column("pipeline", Text, nullable=False),
    Column("payload", JSONB, nullable=False),
    Column("labels", JSONB, nullable=False),
    Column("status", Text, nullable=False),
    Column("stage_status", Text, nullable=False),
    Column("stages_done", ARRAY(Text), nullable=False),
    Column("retry_count", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("trace_id", Text, nullable=False),
    Column("traceparent", Text, nullable=False),
    Column("created_at", _moment, nullable=False),
    Column("updated_at", _moment, nullable=False),
    Column("finished_at", _moment),
    Column("priority", SmallInteger, nullable=False),
    Column("not_before", _moment),
    Column("deadline", _moment),
    Column("submitted_by", Text),
)
intake_key_table = Table(
    "intake_key",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("request_hash", LargeBinary, nullable=False),
    Column("task_id", Uuid, nullable=False),
    Column("created_at", _moment, nullable=False),
)
stage_run_table = Table(
    "stage_run",
    metadata,
    Column("task_id", Uuid, primary_key=True),
    Column("stage", Text, primary_key=True),
    Column("status", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("result", JSONB),
    Column("error", Text),
    Column("next_retry_at", _moment),
    Column("worker", Text),
    Column("started_at", _moment),
    Column("finished_at", _moment),
    Column("lease", LargeBinary),
    Column("answer", JSONB),
)
outbox_table = Table(
    "outbox",
    metadata,
    Column("position", BigInteger, Identity(always=True), primary_key=True),
    Column("slot", SmallInteger, primary_key=True),
    Column("xid", _Named("xid8"), nullable=False),
    Column("task_id", Uuid, nullable=False),
    Column("pipeline", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("stage", Text),
    Column("data", JSONB, nullable=False),
    Column("traceparent", Text),
    Column("occurred_at", _moment, nullable=False),
    Column("priority", SmallInteger, nullable=False),
)
tick_table = Table(
    "tick",
    metadata,
    Column("tick", BigInteger, primary_key=True),
    Column("snapshot", _Named("pg_snapshot"), nullable=False),
    Column("system_identifier", BigInteger, nullable=False),
    Column("made_at", _moment, nullable=False),
)
dead_letter_table = Table(
    "dead_letter",
    metadata,
    Column("dead_letter_id", BigInteger, Identity(always=True), primary_key=True),
    Column("task_id", Uuid, nullable=False),
    Column("pipeline", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("error", Text),
    Column("fingerprint", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("died_at", _moment, nullable=False),
    Column("resolved_at", _moment),
    Column("resolution", Text),
    Column("resolved_by", Text),
)
schedule_table = Table(
    "schedule",
    metadata,
    Column("schedule", Text, primary_key=True),
    Column("pipeline", Text, nullable=False),
    Column("cron", Text, nullable=False),
    Column("timezone", Text, nullable=False),
    Column("payload", JSONB, nullable=False),
    Column("labels", JSONB, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("next_at", _moment, nullable=False),
    Column("last_at", _moment),
    Column("last_task", Uuid),
    Column("created_at", _moment, nullable=False),
)
api_key_table = Table(
    "api_key",
    metadata,
    Column("key_id", Text, primary_key=True),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("pipelines", ARRAY(Text)),
    Column("rate", Text),
    Column("burst", Integer),
    Column("created_at", _moment, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("expires_at", _moment),
    Column("revoked_at", _moment),
    Column("last_used_at", _moment),
)
process_table = Table(
    "process",
    metadata,
    Column("process", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("stages", ARRAY(Text), nullable=False),
    Column("is_leading", Boolean, nullable=False),
    Column("running", JSONB, nullable=False),
    Column("started_at", _moment, nullable=False),
    Column("seen_at", _moment, nullable=False),
    Column("stopped_at", _moment),
)
operation_table = Table(
    "operation",
    metadata,
    Column("operation_id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", _moment, nullable=False),
    Column("by", Text, nullable=False),
    Column("on_behalf_of", Text),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("pipeline", Text),
    Column("reason", Text),
    Column("before", JSONB),
    Column("after", JSONB),
)


class Statements:
    """The ``.sql`` files of one folder, for one schema.

    ``package`` is the folder that holds ``sql/``, given as its ``__package__``.
    """

    def __init__(self, package: str, schema: str) -> None:
        self._package = package
        self._schema = schema

    def __getitem__(self, name: str) -> str:
        """The text of ``sql/<name>.sql``; ``KeyError`` if there is none."""
        return _statement(self._package, name, self._schema)


@cache
def _statement(package: str, name: str, schema: str) -> str:
    file = files(package).joinpath("sql", f"{name}.sql")
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        raise KeyError(f"{package} has no statement {name!r}") from None
    return in_schema(text, schema)


def in_schema(text: str, schema: str) -> str:
    """``text`` with ``postroad.`` replaced by the configured schema, and its ``--`` comments dropped."""
    bare = re.sub(r"^\s*--.*\n", "", text, flags=re.MULTILINE)
    return re.sub(rf"\b{SCHEMA}\.", f"{schema}.", bare)


def sqlalchemy_url(database_url: str) -> URL:
    """``DATABASE_URL`` as SQLAlchemy wants it, with psycopg as the driver. Raises ``SettingsError``.

    It may name several servers as libpq lets it, ``host1:5432,host2:5432``; see ``target_session_attrs``.
    """
    if not database_url:
        raise SettingsError("DATABASE_URL is not set: postgresql://user:password@host:5432/database")
    scheme, _, rest = database_url.partition("://")
    if scheme not in ("postgres", "postgresql", "postgresql+psycopg"):
        raise SettingsError(f"DATABASE_URL begins with postgresql://, not {masked(database_url)!r}")
    try:
        return make_url(f"postgresql+psycopg://{_hosts_apart(rest)}")
    except (ArgumentError, ValueError) as error:
        # Without the driver's words: they may quote a part of the password.
        raise SettingsError(
            f"DATABASE_URL {masked(database_url)!r} is no URL; a password is written with %40 for @, %2F for /"
        ) from error


def _hosts_apart(rest: str) -> str:
    """A URL after its ``://``; several hosts in it go where SQLAlchemy looks for them."""
    match = re.fullmatch(r"([^/?]*@)?([^/?@]*,[^/?@]*)(/[^?]*)?(?:\?(.*))?", rest)
    if match is None:
        return rest
    login, servers, path, query = match.groups(default="")
    parts = [re.fullmatch(r"(\[.*\]|[^:]*):?(\d*)", server) for server in servers.split(",")]
    if None in parts:
        return rest
    hosts = ",".join(part[1].strip("[]") for part in parts if part)
    ports = ",".join(part[2] or "5432" for part in parts if part)
    return f"{login}{path or '/'}?host={hosts}&port={ports}{'&' if query else ''}{query}"


def make_engine(settings: Settings, *, application: str, pool: int | None = None) -> AsyncEngine:
    """The pool of connections of one process, for ``settings.database_url``; nothing is connected yet.

    ``application`` is what ``pg_stat_activity`` shows. The metadata's schema is translated to the configured one.
    """
    engine = create_async_engine(
        sqlalchemy_url(settings.database_url),
        pool_size=pool or settings.pool,
        max_overflow=0,
        pool_timeout=30,
        pool_pre_ping=False,
        # Whatever the role's default: what others have committed meanwhile is to be seen, and decided again.
        isolation_level="READ COMMITTED",
        connect_args=_connect_arguments(application),
        execution_options={"schema_translate_map": {SCHEMA: settings.schema}},
    )
    event.listen(engine.sync_engine, "connect", _prepare_nothing_over_a_pooler)
    return engine


def _prepare_nothing_over_a_pooler(connection: Any, _: object) -> None:
    """The next transaction may be on another connection of the pooler's, where nothing was prepared."""
    cursor = connection.cursor()
    cursor.execute(_BACKEND)
    (backend,) = cursor.fetchone()
    connection.rollback()
    if backend != connection.driver_connection.info.backend_pid:
        connection.driver_connection.prepare_threshold = None


_BACKEND = "select pg_backend_pid()"
"""The process that serves us. A pooler, when we connect, gives a number of its own making for it."""


async def connect_psycopg(settings: Settings, *, application: str) -> psycopg.AsyncConnection[Any]:
    """A plain connection in autocommit, for what lives as long as the session: advisory locks and LISTEN.

    The role's timeouts do not apply to it, nor its isolation: a tick needs a snapshot that is younger than its lock.
    Raises ``SettingsError`` over a pooler that keeps no sessions, and ``psycopg.Error``.
    """
    connection = await _connect(settings, application)
    try:
        if await _backend(connection) != connection.info.backend_pid:
            async with await _connect(settings, application) as other:
                if not await _are_sessions(connection, other):
                    raise SettingsError(
                        f"{masked(settings.database_url)!r} leads to a pooler that gives each transaction another"
                        " connection; the relay needs one that lasts: set direct_url (DIRECT_URL) to Postgres itself"
                    )
        await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        await connection.execute(_NO_TIMEOUTS)
    except BaseException:
        await connection.close()
        raise
    return connection


_NO_TIMEOUTS = """
select set_config(name, '0', false)
  from pg_settings
 where name in ('statement_timeout', 'lock_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout',
                'idle_session_timeout')
"""


async def _connect(settings: Settings, application: str) -> psycopg.AsyncConnection[Any]:
    url = sqlalchemy_url(settings.database_url)
    positional, arguments = url.get_dialect()().create_connect_args(url)
    return await psycopg.AsyncConnection.connect(
        *positional, **dict(arguments) | _connect_arguments(application), autocommit=True
    )


async def _backend(connection: psycopg.AsyncConnection[Any]) -> int:
    (backend,) = await (await connection.execute(_BACKEND, prepare=False)).fetchone() or (0,)
    return int(backend)


async def _are_sessions(one: psycopg.AsyncConnection[Any], other: psycopg.AsyncConnection[Any]) -> bool:
    """Whether a pooler keeps a process of Postgres for each of two connections, for as long as they last.

    Otherwise they share one when the pooler is idle, and change it when it is busy; ten looks tell. The second
    connection of a pooler that has only one session left waits.
    """
    served: tuple[set[int], set[int]] = set(), set()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            for _ in range(10):
                served[0].add(await _backend(one))
                served[1].add(await _backend(other))
    return len(served[0]) == 1 and len(served[1]) <= 1 and served[0] != served[1]


def _connect_arguments(application: str) -> dict[str, Any]:
    return {
        "application_name": application,
        "connect_timeout": 5,
        "keepalives_idle": 30,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }


def current_revision(connection: Connection, schema: str) -> str | None:
    """The revision of the tables in ``schema``; ``None`` if there are none of ours.

    Alembic knows it too, but takes longer to import than a process needs to start otherwise.
    """
    if connection.scalar(select(func.to_regclass(f"{schema}.alembic_version"))) is None:
        return None
    recorded = select(literal_column("version_num", Text)).select_from(table("alembic_version", schema=schema))
    return connection.scalar(recorded)


_TRANSIENT_STATES = ("08", "40", "53", "57", "58", "25006", "25P03", "25P04", "55P03", "XX000")
"""SQLSTATEs, or classes of them, that a later try may not meet again: connection lost, deadlock or serialization,
out of resources, operator intervention, system error, a server that became a standby, a transaction that was idle or
took too long for the role's timeouts, lock not available."""


def is_transient(error: BaseException) -> bool:
    """True if the same statement may succeed later, on a new connection."""
    if isinstance(error, PoolTimeoutError | OSError | asyncio.TimeoutError | UnreachableError):
        return True
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, psycopg.Error) and cause.sqlstate:
        return cause.sqlstate.startswith(_TRANSIENT_STATES)
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(error, OperationalError | InterfaceError | psycopg.OperationalError | psycopg.InterfaceError)


def lost_connection(error: BaseException) -> bool:
    """True if ``error`` says that the server is away, going or full, rather than that it refused one statement."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    state = cause.sqlstate if isinstance(cause, psycopg.Error) else None
    return is_transient(error) and (state is None or state.startswith(("08", "53", "57", "25006", "25P03", "25P04")))
