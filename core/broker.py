"""Redis: the clients, the names of the keys, and how the ``.lua`` files are run.

redis-py's defaults would break us: it repeats a command whose reply was lost, so that a read skips the entries of the
first try, and it times out of a blocking read. Our clients never repeat anything by themselves, and blocking reads
have a client of their own whose socket waits longer than the server does.
"""

import asyncio
import hashlib
import zlib
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from importlib.resources import files
from typing import Any

import redis as redis_sync
from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from .errors import SettingsError
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

    def stream(self, pipeline: str, stage: str) -> str:
        """The stage's stream."""
        return f"{self._stage(pipeline, stage)}:stream"

    def due(self, pipeline: str, stage: str) -> str:
        """The stage's parked entries by the time (ms) at which they are due."""
        return f"{self._stage(pipeline, stage)}:due"

    def alive(self, shard: int, consumer: str) -> str:
        """Exists while this consumer lives."""
        return f"{self._prefix}:{{{shard}}}:alive:{consumer}"

    def _stage(self, pipeline: str, stage: str) -> str:
        return f"{self._prefix}:{{{self.shard_of(pipeline, stage)}}}:{pipeline}.{stage}"


def group_name(pipeline: str, stage: str) -> str:
    """The one consumer group of a stage's stream."""
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


def command_client(settings: Settings, *, connections: int = 8) -> "Redis":
    """A client for short commands: waits for a free connection, gives up on a reply after 5 s, repeats nothing."""
    return _client(settings, connections=connections, pool_timeout=5, socket_timeout=5)


def reading_client(settings: Settings) -> "Redis":
    """A client for the blocking reads of one stream, on a connection of its own."""
    return _client(settings, connections=1, pool_timeout=None, socket_timeout=BLOCK.total_seconds() + 5)


def heartbeat_client(settings: Settings) -> "redis_sync.Redis":
    """A synchronous client for the heartbeat's thread."""
    return redis_sync.Redis.from_url(
        _redis_url(settings.redis_url),
        decode_responses=True,
        encoding_errors="replace",  # bytes of a foreign entry must not end the worker that reads it
        socket_timeout=3,
        socket_connect_timeout=3,
        retry=None,
    )


def is_group_missing(error: BaseException) -> bool:
    """True if ``error`` says that the stream or its group is gone, in the words of any server version."""
    return isinstance(error, ResponseError) and str(error).startswith(("NOGROUP", "UNBLOCKED"))


def is_out_of_memory(error: BaseException) -> bool:
    """True if Redis refuses to store more; reading and acknowledging still work then."""
    return isinstance(error, RedisError) and "OOM" in str(error)[:40]


async def reset_if_demoted(client: "Redis", error: BaseException) -> None:
    """Drop the connections if they lead to a server that no longer takes writes, or whose state changed.

    Such a connection stays healthy in redis-py's eyes, and would be used for ever.
    """
    if str(error).startswith(("READONLY", "UNBLOCKED", "LOADING", "MASTERDOWN", "You can't write")):
        await client.connection_pool.disconnect(inuse_connections=False)


def heed_cancellation() -> None:
    """Raise if this task was cancelled and nobody told it: for loops that would go on for ever.

    redis-py sends by ``wait_for()``, which before Python 3.12 swallows a cancellation that comes as it returns.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _redis_url(url: str) -> str:
    if not url:
        raise SettingsError("REDIS_URL is not set: redis://host:6379/0")
    return url.replace("valkey://", "redis://", 1).replace("valkeys://", "rediss://", 1)


def _client(settings: Settings, *, connections: int, pool_timeout: float | None, socket_timeout: float) -> "Redis":
    url = _redis_url(settings.redis_url)
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=connections,
            timeout=pool_timeout,
            decode_responses=True,
            encoding_errors="replace",  # bytes of a foreign entry must not end the worker that reads it
            legacy_responses=False,
            retry=None,
            socket_timeout=socket_timeout,
            socket_connect_timeout=3,
        )
    except ValueError as error:
        # Without the driver's words: they may quote a part of the password.
        raise SettingsError(
            f"REDIS_URL {masked(settings.redis_url)!r} is no URL; a password is written with %40 for @, %2F for /"
        ) from error
    return Redis.from_pool(pool)
