"""Redis: the clients, the names of the keys, and how the ``.lua`` files are run.

redis-py's defaults would break us: it repeats a command whose reply was lost, so that a read skips the entries of the
first try, and it times out of a blocking read. Our clients never repeat anything by themselves, and blocking reads
have a client of their own whose socket waits longer than the server does.

Behind sentinels and in a cluster a client asks who the master is whenever it connects, and drops its connections when
a server says that it is the master no more. In a cluster each shard, being one slot, has one master, and clients of its
own: a master that is away disturbs nobody else. See docs/decisions/0010-a-client-per-shard.md.
"""

import asyncio
import hashlib
import random
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache, partial
from importlib.resources import files
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, SSLConnection, parse_url
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from .errors import SettingsError, first_line
from .redis_url import RedisUrl, Topology
from .settings import Settings, masked

BLOCK = timedelta(seconds=2)
"""How long a read waits in Redis for entries. Proxies cut connections that are silent for long."""

RETRY_CONSUMER = "~retry"
"""The consumer under which failed entries stay pending until they are due. No process is named like this."""


class Keys:
    """The names of our keys. Those that one script touches share a hash tag, and so a slot of a Redis Cluster."""

    def __init__(self, prefix: str, shards: int = 1) -> None:
        self._prefix = prefix
        self.shards = range(shards)

    def shard_of(self, pipeline: str, stage: str) -> int:
        """The shard that a stage belongs to, by its name."""
        return zlib.crc32(f"{pipeline}.{stage}".encode()) % len(self.shards)

    def marker(self, shard: int) -> str:
        """How far the outbox has been published into this shard."""
        return f"{self._prefix}:{{{shard}}}:marker"

    def stream(self, pipeline: str, stage: str, lane: str = "") -> str:
        """The stage's stream; with ``lane`` another one beside it."""
        return f"{self._stage(pipeline, stage)}:stream{lane and ':'}{lane}"

    def due(self, pipeline: str, stage: str, lane: str = "") -> str:
        """The parked entries of that stream by the time (ms) at which they are due."""
        return f"{self._stage(pipeline, stage)}:due{lane and ':'}{lane}"

    def limit(self, pipeline: str, stage: str) -> str:
        """How much of the stage's rate is used."""
        return f"{self._stage(pipeline, stage)}:limit"

    def running(self, pipeline: str, stage: str) -> str:
        """How many of the stage's entries each process holds."""
        return f"{self._stage(pipeline, stage)}:running"

    def quota(self, key_id: str) -> tuple[str, int]:
        """How much of the rate of a key of the door is used, and the shard that this belongs to."""
        shard = zlib.crc32(key_id.encode()) % len(self.shards)
        return f"{self._prefix}:{{{shard}}}:quota:{key_id}", shard

    def alive(self, shard: int, consumer: str) -> str:
        """Exists while this consumer lives."""
        return f"{self._prefix}:{{{shard}}}:alive:{consumer}"

    def _stage(self, pipeline: str, stage: str) -> str:
        return f"{self._prefix}:{{{self.shard_of(pipeline, stage)}}}:{pipeline}.{stage}"


def group_name(pipeline: str, stage: str) -> str:
    """The one consumer group of a stage's stream, or of each of its streams."""
    return f"{pipeline}.{stage}"


class Scripts:
    """The ``.lua`` files of one folder. ``package`` is the folder that holds ``lua/``, given as its ``__package__``."""

    def __init__(self, package: str, client: "Redis") -> None:
        self._package = package
        self._client = client

    async def run(self, name: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        """Run ``lua/<name>.lua``. A server that has forgotten it is sent the text again."""
        text, digest = _script(self._package, name)
        try:
            return await self._client.evalsha(digest, len(keys), *keys, *map(str, arguments))
        except NoScriptError:
            return await self._client.eval(text, len(keys), *keys, *map(str, arguments))


@cache
def _script(package: str, name: str) -> tuple[str, str]:
    text = files(package).joinpath("lua", f"{name}.lua").read_text("utf-8")
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Clients:
    """The clients of one process for short commands: one for all shards, or in a cluster one for each."""

    def __init__(self, settings: Settings, *, connections: int = 8) -> None:
        self._settings = settings
        self._connections = connections
        self._is_cluster = _parsed(settings).topology is Topology.CLUSTER
        self._made: dict[int, Redis] = {}

    def of(self, shard: int) -> "Redis":
        """The client for the keys of ``shard``, and for nothing else; see ``command_client``."""
        place = shard if self._is_cluster else 0
        if place not in self._made:
            self._made[place] = command_client(self._settings, shard=place, connections=self._connections)
        return self._made[place]

    async def aclose(self) -> None:
        """Close the connections of all."""
        for client in self._made.values():
            await client.aclose()


def command_client(settings: Settings, *, shard: int = 0, connections: int = 8) -> "Redis":
    """A client for short commands: waits for a free connection, gives up on a reply after 5 s, repeats nothing."""
    return _client(settings, shard, connections=connections, pool_timeout=5, socket_timeout=5)


def reading_client(settings: Settings, *, shard: int = 0) -> "Redis":
    """A client for the blocking reads of one stream, on a connection of its own."""
    return _client(settings, shard, connections=1, pool_timeout=None, socket_timeout=BLOCK.total_seconds() + 5)


def is_group_missing(error: BaseException) -> bool:
    """True if ``error`` says that the stream or its group is gone, in the words of any server version."""
    return isinstance(error, ResponseError) and str(error).startswith(("NOGROUP", "UNBLOCKED", "no such key"))


def told(error: BaseException) -> str:
    """What ``error`` says, in one line, with the code that redis-py cuts off: MOVED says little else."""
    return f"{getattr(error, 'status_code', None) or ''} {first_line(error)}".strip()


async def reset_if_demoted(client: "Redis", error: BaseException) -> None:
    """Drop the connections if they lead to a server that no longer takes writes, or whose state changed.

    Such a connection stays healthy in redis-py's eyes, and would be used for ever.
    """
    # TRYAGAIN comes while a cluster moves the shard's slot elsewhere; a server may well ask for patience by LOADING.
    is_elsewhere = isinstance(error, ReadOnlyError | AskError | ClusterDownError | TryAgainError | BusyLoadingError)
    if is_elsewhere or str(error).startswith("UNBLOCKED"):
        await client.connection_pool.disconnect(inuse_connections=False)


def heed_cancellation() -> None:
    """Raise if this task was cancelled and nobody told it: for loops that would go on for ever.

    redis-py sends by ``wait_for()``, which before Python 3.12 swallows a cancellation that comes as it returns.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _parsed(settings: Settings) -> RedisUrl:
    if not settings.redis_url:
        raise SettingsError("REDIS_URL is not set: redis://host:6379/0")
    return RedisUrl.parse(settings.redis_url)


def _client(
    settings: Settings, shard: int, *, connections: int, pool_timeout: float | None, socket_timeout: float
) -> "Redis":
    url = _parsed(settings)
    try:
        options: dict[str, Any] = dict(parse_url(url.server))
    except ValueError as error:
        # Without the driver's words: they may quote a part of the password.
        raise SettingsError(
            f"REDIS_URL {masked(settings.redis_url)!r} is no URL; a password is written with %40 for @, %2F for /"
        ) from error
    match url.topology:
        case Topology.SERVER:
            make: Callable[..., BlockingConnectionPool] = BlockingConnectionPool
        case Topology.SENTINEL:
            make = partial(_FollowingPool, _SentinelMaster(url, _asking(options) | dict(url.sentinel_login)))
        case Topology.CLUSTER:
            login = {name: options[name] for name in ("username", "password") if name in options}
            slot = key_slot(Keys(settings.prefix).marker(shard).encode())
            make = partial(_FollowingPool, _SlotMaster(url.nodes, slot, _asking(options) | login))
    pool = make(
        max_connections=connections,
        timeout=pool_timeout,
        decode_responses=True,
        encoding_errors="replace",  # bytes of a foreign entry must not end the worker that reads it
        legacy_responses=False,
        retry=None,
        socket_timeout=socket_timeout,
        socket_connect_timeout=3,
        **options,
    )
    return Redis.from_pool(pool)


def _asking(options: dict[str, Any]) -> dict[str, Any]:
    """How to ask somebody who the master is: briefly, since there are others to ask; encrypted if Redis is."""
    tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
    is_tls = options.get("connection_class") is SSLConnection
    return {"socket_timeout": 1, "socket_connect_timeout": 1, "retry": None, "ssl": is_tls} | tls


class _SentinelMaster:
    """Finds the master that sentinels watch over."""

    def __init__(self, url: RedisUrl, asking: dict[str, Any]) -> None:
        self._name = url.master
        self._sentinel = Sentinel(url.nodes, sentinel_kwargs=asking)  # type: ignore[no-untyped-call]

    async def find(self) -> tuple[str, int]:
        """Its host and port. Raises ``redis.ConnectionError``."""
        try:
            host, port = await self._sentinel.discover_master(self._name)
        except MasterNotFoundError as error:
            # In fewer words than redis-py's, which show every connection.
            raise ConnectionError(f"no sentinel that answers knows a master {self._name!r} that is up") from error
        return host, port

    async def aclose(self) -> None:
        """Close the connections to the sentinels."""
        await self._sentinel.aclose()


class _SlotMaster:
    """Finds the master of one slot of a cluster."""

    def __init__(self, nodes: Sequence[tuple[str, int]], slot: int, asking: dict[str, Any]) -> None:
        self._given = nodes
        self._found: set[tuple[str, int]] = set()
        self._slot = slot
        self._asking = asking

    async def find(self) -> tuple[str, int]:
        """Its host and port. Raises ``redis.ConnectionError``."""
        nodes = list({*self._given, *self._found})
        # Or a node that was cut off from the others would be believed for ever.
        random.shuffle(nodes)
        reason: Exception | None = None
        for host, port in nodes:
            try:
                async with Redis(host=host, port=port, **self._asking) as client:
                    ranges = await client.execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]
            except (RedisError, OSError) as error:
                reason = error
                continue
            # A node that does not know its own address leaves it out.
            serving = [
                (first, last, [(node[0].decode() if node[0] else host, node[1]) for node in members])
                for first, last, *members in ranges
            ]
            self._found = {node for _, _, members in serving for node in members}
            for first, last, (master, *_) in serving:
                if first <= self._slot <= last:
                    return master
        if reason is None:
            raise ConnectionError(f"no node of the cluster serves slot {self._slot}")
        raise ConnectionError(f"no node of the cluster knows who serves slot {self._slot}: {first_line(reason)}")

    async def aclose(self) -> None:
        """Nothing is kept open."""


class _FollowingPool(BlockingConnectionPool):
    """Connections to whoever is the master when they are made."""

    def __init__(self, master: _SentinelMaster | _SlotMaster, **options: Any) -> None:
        super().__init__(**options)
        self._master = master
        self._address: tuple[str, int] | None = None

    async def ensure_connection(self, connection: AbstractConnection) -> None:
        """Connect it, unless it is connected, to the master of now; the idle ones to another are dropped."""
        if not connection.is_connected:
            address = await self._master.find()
            if address != self._address:
                self._address = address
                await self.disconnect(inuse_connections=False)
            connection.host, connection.port = address  # type: ignore[attr-defined]
        await super().ensure_connection(connection)

    async def aclose(self) -> None:
        """Close the connections, and those to whom we asked for the master."""
        await super().aclose()
        await self._master.aclose()
