"""The deployment that is looked over: its servers, asked read-only and patiently, and this machine's clock.

What several checks need is asked once, and remembered.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from sqlalchemy import Row, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.broker import Clients, Keys, told
from ..core.database import Statements, make_engine
from ..core.priority import Priority
from ..core.redis_url import RedisUrl, Topology
from ..core.settings import Settings

PATIENCE = 4.0
"""Seconds that Postgres works on one statement of ours: whoever waits for the doctor waits for all of them."""

SCAN_PAGE, SCAN_PAGES = 500, 200
"""Keys of Redis that are looked at in one call, a fraction of a millisecond, and such calls: there may be millions of
keys of others."""

_NAME = "[a-z][a-z0-9_-]*"


@dataclass(frozen=True, slots=True)
class Node:
    """One server of Redis and the shards that it holds: all of them, unless it is part of a cluster."""

    shards: tuple[int, ...]
    client: Redis


@dataclass(frozen=True, slots=True)
class Scan:
    """The keys with our prefix; ``is_whole`` is false if there are more keys than we look at."""

    keys: tuple[str, ...]
    is_whole: bool


class Patient:
    """A deployment as its settings name it. ``clock`` is this machine's, in seconds since 1970.

    Raises ``SettingsError`` if a server is not named.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.clock = clock
        self.keys = Keys(settings.prefix, settings.shards)
        self.away: dict[int, str] = {}
        """Why shards of Redis do not answer."""
        self._engine = make_engine(settings, application="postroad doctor", pool=1)
        self._read_only = self._engine.execution_options(postgresql_readonly=True)
        self._sql = Statements(__package__ or "", settings.schema)
        self._clients = Clients(settings, connections=2)
        self.is_cluster = RedisUrl.parse(settings.redis_url).topology is Topology.CLUSTER
        self._known: dict[str, Any] = {}
        lanes = "|".join(priority.lane for priority in Priority if priority.lane)
        self._named = re.compile(
            re.escape(settings.prefix) + r":\{(?P<shard>\d{1,4})\}:"
            rf"(?:marker|(?:alive|quota):.+|(?P<stage>{_NAME}\.{_NAME}):(?:limit|running|(?:stream|due)(?::(?:{lanes}))?))"
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._clients.aclose()
        await self._engine.dispose()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that may not write, and no statement of which takes longer than ``PATIENCE``."""
        async with self._read_only.begin() as connection:
            # For this transaction: behind a pooler the session is somebody else's too.
            await connection.execute(select(func.set_config("statement_timeout", f"{PATIENCE}s", True)))
            yield connection

    def statement(self, name: str) -> str:
        """The text of ``sql/<name>.sql``."""
        return self._sql[name]

    async def rows(self, statement: str, **parameters: Any) -> Sequence[Row[Any]]:
        """The rows of ``sql/<statement>.sql``. The same question is asked once."""

        async def ask() -> Sequence[Row[Any]]:
            async with self.connection() as connection:
                return (await connection.exec_driver_sql(self._sql[statement], parameters or None)).all()

        known: Sequence[Row[Any]] = await self.once(f"{statement} {sorted(parameters.items())}", ask)
        return known

    async def row(self, statement: str, **parameters: Any) -> Row[Any]:
        """The one row of ``sql/<statement>.sql``."""
        (row,) = await self.rows(statement, **parameters)
        return row

    async def server_settings(self) -> dict[str, str]:
        """The settings of Postgres as they hold for our role at its login, in their base units."""
        return {row.name: row.value for row in await self.rows("settings")}

    def client(self, shard: int) -> Redis:
        """The client for the keys of ``shard``."""
        return self._clients.of(shard)

    async def nodes(self) -> list[Node]:
        """The servers of Redis that answer. Those that do not are in ``away``."""

        async def find() -> list[Node]:
            if not self.is_cluster:
                return [Node(tuple(self.keys.shards), self.client(0))]
            held: dict[str, list[int]] = {}
            # At once: one that hangs would keep us from the others.
            answers = await asyncio.gather(*map(self._server_of, self.keys.shards), return_exceptions=True)
            for shard, answer in zip(self.keys.shards, answers, strict=True):
                if isinstance(answer, BaseException):
                    self.away[shard] = told(answer) if str(answer) else "nothing came in time"
                else:
                    held.setdefault(answer, []).append(shard)
            return [Node(tuple(shards), self.client(shards[0])) for shards in held.values()]

        found: list[Node] = await self.once("nodes", find)
        return found

    async def _server_of(self, shard: int) -> str:
        """Which server holds a shard of a cluster, by the name that it gives itself at its start."""
        async with asyncio.timeout(PATIENCE / 2):
            return str((await self.client(shard).info("server"))["run_id"])

    async def markers(self) -> dict[int, str]:
        """The text of the marker of each shard that answers; ``""`` where there is none."""

        async def get() -> dict[int, str]:
            await self.nodes()
            return {
                shard: str(await self.client(shard).get(self.keys.marker(shard)) or "")
                for shard in self.keys.shards
                if shard not in self.away
            }

        found: dict[int, str] = await self.once("markers", get)
        return found

    async def info(self, node: Node) -> dict[str, Any]:
        """What ``INFO`` says of a server."""
        known: dict[str, Any] = await self.once(f"info {node.shards}", node.client.info)
        return known

    async def scan(self) -> Scan:
        """Our keys, of all servers that answer."""

        async def look() -> Scan:
            keys: set[str] = set()
            is_whole = True
            for node in await self.nodes():
                cursor: int = 0
                for _ in range(SCAN_PAGES):
                    cursor, page = await node.client.scan(cursor, match=f"{self.settings.prefix}:*", count=SCAN_PAGE)
                    keys.update(map(str, page))
                    if not cursor:
                        break
                is_whole &= not cursor
            return Scan(tuple(sorted(keys)), is_whole)

        found: Scan = await self.once("scan", look)
        return found

    def shard_in(self, key: str) -> int | None:
        """The number of the shard that a key of ours names."""
        match = self._named.fullmatch(key)
        return int(match["shard"]) if match else None

    def stage_key(self, key: str) -> tuple[int, str] | None:
        """The shard and the stage, as ``pipeline.stage``, that a key belongs to; ``None`` if it is no stage's."""
        match = self._named.fullmatch(key)
        return (int(match["shard"]), match["stage"]) if match and match["stage"] else None

    def is_ours(self, key: str) -> bool:
        """True if the key is one of those that ``Keys`` makes."""
        return self._named.fullmatch(key) is not None

    async def once(self, question: str, ask: Callable[[], Any]) -> Any:
        """What ``ask`` came to when ``question`` came up first."""
        if question not in self._known:
            self._known[question] = await ask()
        return self._known[question]
