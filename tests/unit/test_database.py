"""The connection to Postgres without one: URLs, the statements' files, which errors pass by themselves."""

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from postroad import Settings
from postroad.core import broker
from postroad.core.database import Statements, in_schema, is_transient, lost_connection, sqlalchemy_url
from postroad.core.errors import SettingsError


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_psycopg_is_the_driver_however_the_url_is_spelt(scheme: str) -> None:
    url = sqlalchemy_url(f"{scheme}://user:p%40ss@host:5433/road?sslmode=require")

    assert url.drivername == "postgresql+psycopg"
    assert (url.username, url.password, url.host, url.port, url.database) == ("user", "p@ss", "host", 5433, "road")
    assert url.query == {"sslmode": "require"}


@pytest.mark.parametrize(
    ("authority", "hosts", "ports"),
    [
        ("one:5433,two:5434", "one,two", "5433,5434"),
        ("one,two:5434,three", "one,two,three", "5432,5434,5432"),
        ("[::1]:5433,[fe80::2]", "::1,fe80::2", "5433,5432"),
    ],
)
def test_several_servers_are_named_as_libpq_has_it(authority: str, hosts: str, ports: str) -> None:
    url = sqlalchemy_url(f"postgresql://user:p%40s,s@{authority}/road?target_session_attrs=read-write")

    _, arguments = url.get_dialect()().create_connect_args(url)
    assert arguments == {
        "user": "user",
        "password": "p@s,s",
        "host": hosts,
        "port": ports,
        "dbname": "road",
        "target_session_attrs": "read-write",
    }


@pytest.mark.parametrize(
    "url",
    [
        "",
        "mysql://host/road",
        "host/road",
        "postgresql://user:sec:ret@host:port/road",
        "postgresql://user:secret@a:1,b:port/road",
    ],
)
def test_a_database_url_that_is_none_is_told_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError, match="DATABASE_URL") as caught:
        sqlalchemy_url(url)

    assert "ret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["", "redis://user:p#ss@host", "redis://user:p[ss@host", "redis://user:pass@host:port/0"]
)
def test_a_redis_url_that_is_none_is_told_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError, match="REDIS_URL") as caught:
        broker.command_client(Settings(redis_url=url))

    assert "ss" not in str(caught.value).replace("password", "")


def test_statements_name_the_configured_schema_everywhere_but_in_words() -> None:
    text = (
        "-- a comment on postroad.task\nselect 'postroad.asleep' from postroad.task join mypostroad.task\n  -- more\n"
    )

    assert in_schema(text, "other") == "select 'other.asleep' from other.task join mypostroad.task\n"
    assert in_schema(text, "postroad") == "select 'postroad.asleep' from postroad.task join mypostroad.task\n"


def test_a_statement_is_found_by_its_name() -> None:
    assert Statements("postroad.outbox", "other")["known_tick"].strip().startswith("select 1\n  from other.tick")

    with pytest.raises(KeyError, match=r"postroad\.outbox has no statement 'forget'"):
        Statements("postroad.outbox", "postroad")["forget"]


@pytest.mark.parametrize(
    ("error", "passes", "means_lost"),
    [
        (psycopg.errors.DeadlockDetected(), True, False),
        (psycopg.errors.SerializationFailure(), True, False),
        (psycopg.errors.LockNotAvailable(), True, False),
        (psycopg.errors.TooManyConnections(), True, True),
        (psycopg.errors.DiskFull(), True, True),
        (psycopg.errors.AdminShutdown(), True, True),
        (psycopg.errors.CannotConnectNow(), True, True),
        (psycopg.errors.ConnectionFailure(), True, True),
        (psycopg.errors.ReadOnlySqlTransaction(), True, True),
        (psycopg.errors.IdleInTransactionSessionTimeout(), True, True),
        (psycopg.OperationalError("no SQLSTATE: the connection broke"), True, True),
        (ConnectionRefusedError(), True, True),
        (TimeoutError(), True, True),
        (psycopg.errors.UniqueViolation(), False, False),
        (psycopg.errors.CheckViolation(), False, False),
        (psycopg.errors.UndefinedTable(), False, False),
        (psycopg.errors.InvalidTextRepresentation(), False, False),
        (psycopg.DataError(), False, False),
        (KeyError(), False, False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_that_pass_by_themselves_are_told_from_those_that_do_not(
    error: Exception, passes: bool, means_lost: bool
) -> None:
    assert (is_transient(error), lost_connection(error)) == (passes, means_lost)

    if isinstance(error, psycopg.Error):
        wrapped = DBAPIError.instance("select 1", None, error, psycopg.Error)
        assert (is_transient(wrapped), lost_connection(wrapped)) == (passes, means_lost)
