"""The test bed: durable embedded servers, and what their processes use."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import psycopg

from postroad.core.servers import Postgres, Valkey
from postroad.core.settings import Settings
from postroad.migrations import upgrade
from tests.acceptance.deployment import Deployment, Process


@dataclass(frozen=True, slots=True)
class Bed:
    """Running servers, with ``fsync`` and an append-only file, in a folder that goes with them."""

    postgres: Postgres
    valkey: Valkey
    folder: Path

    def deployment(self, app: str, **settings: object) -> Deployment:
        """A deployment in a fresh, migrated database, with an empty Redis; nothing runs yet."""
        name = f"bench_{len(list(self.folder.glob('logs-*')))}"
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            connection.execute(f'create database "{name}"'.encode())
        database_url = self.postgres.url.removesuffix("/postgres") + f"/{name}"
        upgrade(database_url)
        logs = self.folder / f"logs-{name}"
        logs.mkdir()
        made = Settings(database_url=database_url, redis_url=self.valkey.url, app=app, port=0)
        deployment = Deployment(replace(made, **settings), logs)  # type: ignore[arg-type]  # names of settings
        with deployment.redis() as client:
            client.flushall()
        return deployment


@contextmanager
def bed(postgres_options: Mapping[str, str] | None = None) -> Iterator[Bed]:
    """Servers for the length of the block; ``postgres_options`` are settings of the server."""
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as folder:
        postgres = Postgres(Path(folder, "postgres"), options=postgres_options)
        with postgres, Valkey(Path(folder, "valkey"), appendonly=True) as valkey:
            yield Bed(postgres, valkey, Path(folder))


def cpu_seconds(pid: int) -> float:
    """What a process and its children have used, those that have ended included."""
    process = psutil.Process(pid)
    times = process.cpu_times()
    used = times.user + times.system + times.children_user + times.children_system
    for child in process.children():
        times = child.cpu_times()
        used += times.user + times.system
    return float(used)


def megabytes(process: Process) -> float:
    """The resident memory of a process."""
    return float(psutil.Process(process.pid).memory_info().rss / 1e6)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """``rows`` lined up: the first column to the left, numbers to the right."""
    names = list(rows[0])
    widths = [max(len(name), *(len(row[name]) for row in rows)) for name in names]
    lines = []
    for cells in (names, *([row[name] for name in names] for row in rows)):
        first, *others = zip(cells, widths, strict=True)
        lines.append("  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]))
    return "\n".join(lines)
