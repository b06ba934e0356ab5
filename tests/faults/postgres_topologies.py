"""More of Postgres than one server: replicas that are promoted, dumps restored elsewhere, poolers, small disks.

All are context managers, and whatever they start ends with them.
"""

import contextlib
import inspect
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from postroad.core.servers import Postgres, watch
from postroad.core.servers.account import Account, nobody
from postroad.core.servers.server import free_port
from tests.acceptance.deployment import wait_until

OPTIONS = {"max_prepared_transactions": "20"}
"""Those of the tests' servers: a replica must not have less."""


@contextlib.contextmanager
def replica_of(primary: Postgres) -> Iterator[Postgres]:
    """A replica that streams from ``primary``, asynchronously, on a port of its own."""
    with _folder_beside(primary) as folder:
        (folder / "password").write_bytes((primary.folder / "password").read_bytes())
        _run(primary, "pg_basebackup", "--pgdata", folder / "data", "--write-recovery-conf", "--checkpoint=fast")
        with Postgres(folder, fsync=False, options=OPTIONS) as replica:
            wait_until(lambda: is_level(primary, replica), "the replica streams")
            yield replica


@contextlib.contextmanager
def promoted(replica: Postgres, *, port: int) -> Iterator[Postgres]:
    """``replica`` as the primary at ``port``: that of the old one, which has ended, as behind an address that moves."""
    replica.stop()
    with Postgres(replica.folder, port=port, fsync=False, options=OPTIONS) as primary:
        promote(primary)
        yield primary


@contextlib.contextmanager
def another_cluster(beside: Postgres) -> Iterator[Postgres]:
    """An empty Postgres with a ``system_identifier`` of its own, in a folder beside that of ``beside``."""
    with _folder_beside(beside) as folder, Postgres(folder, fsync=False, options=OPTIONS) as cluster:
        yield cluster


@contextlib.contextmanager
def pgbouncer(postgres: Postgres, mode: str, *, size: int = 5) -> Iterator[str]:
    """A PgBouncer before ``postgres``, with at most ``size`` connections to it; yields the URL through it."""
    program = shutil.which("pgbouncer")
    if program is None:
        pytest.skip("PgBouncer is not installed")
    port = free_port()
    password = (postgres.folder / "password").read_text()
    configuration = f"""
        [databases]
        postgres = host=127.0.0.1 port={postgres.port} user=postgres password={password}
        [pgbouncer]
        listen_addr = 127.0.0.1
        listen_port = {port}
        unix_socket_dir =
        auth_type = any
        pool_mode = {mode}
        default_pool_size = {size}
        max_client_conn = 500
        logfile = pgbouncer.log
    """
    account = nobody() if os.geteuid() == 0 else Account()
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    with _folder_beside(postgres) as folder:
        (folder / "pgbouncer.ini").write_text(inspect.cleandoc(configuration))
        account.own(folder)
        bouncer = subprocess.Popen(
            [program, "--quiet", "pgbouncer.ini"], cwd=folder, start_new_session=True, **account.popen_arguments
        )
        watcher = watch(bouncer.pid, signal.SIGKILL)
        try:
            wait_until(lambda: _answers(url), "the pooler answers")
            yield url
        finally:
            bouncer.kill()
            bouncer.wait()
            watcher.kill()
            watcher.communicate()


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def promote(replica: Postgres) -> None:
    """Make ``replica`` a primary; returns when it takes writes."""
    assert ask(replica, "select pg_promote()") == [(True,)]


def user_of(postgres: Postgres, name: LiteralString) -> str:
    """A new role, no superuser, which may make schemas and tables; the URL with which it logs in."""
    ask(postgres, f"create role {name} login password 'secret'")
    ask(postgres, f"grant create on database postgres to {name}; grant create on schema public to {name}")
    return f"postgresql://{name}:secret@127.0.0.1:{postgres.port}/postgres"


@contextlib.contextmanager
def no_connection_left(postgres: Postgres, role: LiteralString) -> Iterator[None]:
    """Whoever is connected as ``role`` by postroad is cut, and gets no connection again: as if others had them all."""
    ask(postgres, f"alter role {role} connection limit 0")
    ask(postgres, "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'postroad%'")
    yield
    ask(postgres, f"alter role {role} connection limit -1")


@contextlib.contextmanager
def on_a_small_disk(beside: Postgres, *, megabytes: int, is_log_elsewhere: bool) -> Iterator[Postgres]:
    """A Postgres whose data have a disk of their own; its log of transactions is there too, or not."""
    with _folder_beside(beside) as folder:
        disk, log = folder / "disk", folder / "wal"
        disk.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0755", "tmpfs", disk],
            capture_output=True,
            text=True,
        )
        if mounted.returncode != 0:
            pytest.skip(f"no small disk can be mounted: {mounted.stderr.strip()}")
        try:
            options = OPTIONS | {"max_wal_size": "32MB", "min_wal_size": "32MB", "wal_recycle": "off"}
            small = Postgres(disk, fsync=False, options=options)
            small.initialise()
            if is_log_elsewhere:
                shutil.copytree(small.data / "pg_wal", log)
                shutil.rmtree(small.data / "pg_wal")
                (small.data / "pg_wal").symlink_to(log)
                small._account().own(log)
                folder.chmod(0o755)
            with small:
                yield small
        finally:
            subprocess.run(["umount", disk], check=True)


def fill(postgres: Postgres) -> Path:
    """Leave no room on its disk; returns the file to delete."""
    ballast = postgres.folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(65536)):
            pass
    return ballast


def make_synchronous(primary: Postgres) -> None:
    """From now on nothing is answered as committed that the one replica does not have."""
    ask(primary, "alter system set synchronous_standby_names = '*'")
    ask(primary, "select pg_reload_conf()")
    wait_until(lambda: ask(primary, "select from pg_stat_replication where sync_state = 'sync'"), "it is synchronous")


def cut_off(replica: Postgres) -> None:
    """Let ``replica`` hear of nothing that is committed from now on."""
    ask(replica, "alter system set primary_conninfo = ''")
    ask(replica, "select pg_reload_conf()")
    wait_until(lambda: not ask(replica, "select from pg_stat_wal_receiver"), "the replica streams no more")


def is_level(primary: Postgres, replica: Postgres) -> bool:
    """Whether ``replica`` has replayed what ``primary`` had written when it was asked."""
    ((written,),) = ask(primary, "select pg_current_wal_flush_lsn()")
    ((replayed,),) = ask(replica, "select pg_last_wal_replay_lsn()")
    return replayed is not None and _lsn(replayed) >= _lsn(written)


def dump(postgres: Postgres, file: Path) -> None:
    """``pg_dump`` the database into ``file``, as it is at one moment."""
    _run(postgres, "pg_dump", "--format=custom", "--file", file, "postgres")


def restore(postgres: Postgres, file: Path, database: str = "postgres") -> str:
    """``pg_restore`` what is in ``file``, all or nothing, into an empty database; returns its URL."""
    _run(postgres, "pg_restore", "--single-transaction", "--dbname", database, file)
    return urlunsplit(urlsplit(postgres.url)._replace(path=f"/{database}"))


def ask(postgres: Postgres, statement: LiteralString, *parameters: Any) -> list[tuple[Any, ...]]:
    """Rows, if there are any, on a connection of its own."""
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        cursor = connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description is not None else []


@contextlib.contextmanager
def _folder_beside(postgres: Postgres) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=postgres.folder.parent) as folder:
        yield Path(folder)


def _run(postgres: Postgres, program: str, *arguments: str | Path) -> None:
    """Run a client program of Postgres' own against ``postgres``."""
    where = {
        "PGHOST": "127.0.0.1",
        "PGPORT": str(postgres.port),
        "PGUSER": "postgres",
        "PGPASSWORD": (postgres.folder / "password").read_text(),
    }
    path = postgres._program().with_name(program)
    ended = subprocess.run(
        [path, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=os.environ | where
    )
    assert ended.returncode == 0, ended.stderr


def _lsn(text: str) -> int:
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)
