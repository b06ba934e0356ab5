"""Faults of Redis: what it forgets, what it refuses, and when it does not answer."""

import contextlib
import os
import random
import shutil
import signal
from collections.abc import Iterator
from typing import Any

from postroad.core.broker import RETRY_CONSUMER
from tests.acceptance.deployment import Process
from tests.acceptance.havoc import crash, wipe

from ..app import FAILING_STAGE, STAGES
from ..scene import Missed, Scene, fault

FULL = 4.0
"""Seconds for which Redis is full."""

SEEN = 10.0
"""Seconds of patience for something to strike; the load is steady."""


@fault("redis", "flushall")
def flushall(scene: Scene, draw: random.Random) -> None:
    """FLUSHALL"""
    wipe(scene.deployment)


@fault("redis", "del-stream")
def delete_stream(scene: Scene, draw: random.Random) -> None:
    """DEL of one stage's stream"""
    with scene.deployment.redis() as client:
        client.delete(scene.stream(draw.choice(STAGES))[0])


@fault("redis", "del-marker")
def delete_marker(scene: Scene, draw: random.Random) -> None:
    """DEL of the relay's marker"""
    with scene.deployment.redis() as client:
        client.delete(scene.marker)


@fault("redis", "destroy-group")
def destroy_group(scene: Scene, draw: random.Random) -> None:
    """XGROUP DESTROY of one stage's group"""
    with scene.deployment.redis() as client:
        client.xgroup_destroy(*scene.stream(draw.choice(STAGES)))


@fault("redis", "delconsumer")
def delete_consumer(scene: Scene, draw: random.Random) -> None:
    """XGROUP DELCONSUMER of live workers that have entries pending"""
    stream, group = scene.stream(draw.choice(STAGES))
    with scene.deployment.redis() as client:

        def busy() -> list[str]:
            consumers: Any = client.xinfo_consumers(stream, group)
            return [one["name"] for one in consumers if one["pending"] and one["name"] != RETRY_CONSUMER]

        for name in scene.until(busy, "a worker is busy", seconds=SEEN):
            client.xgroup_delconsumer(stream, group, name)


@fault("redis", "delconsumer-parked")
def delete_parked(scene: Scene, draw: random.Random) -> None:
    """XGROUP DELCONSUMER of the consumer under which retries wait"""
    stream, group = scene.stream(FAILING_STAGE)
    with scene.deployment.redis() as client:
        scene.until(lambda: client.zcard(scene.due(FAILING_STAGE)), "a retry waits", seconds=SEEN)
        client.xgroup_delconsumer(stream, group, RETRY_CONSUMER)


@fault("redis", "del-due")
def delete_due(scene: Scene, draw: random.Random) -> None:
    """DEL of the list of when retries are due"""
    with scene.deployment.redis() as client:
        due = scene.due(FAILING_STAGE)
        scene.until(lambda: client.delete(due), "a retry waits", seconds=SEEN)


@fault("redis", "xdel-undelivered")
def delete_undelivered(scene: Scene, draw: random.Random) -> None:
    """XDEL of all entries of a stage that no worker has read yet"""
    stage = draw.choice(STAGES)
    stream, group = scene.stream(stage)
    with scene.deployment.redis() as client, _stopped(scene, stage):

        def waiting() -> list[str]:
            groups: Any = client.xinfo_groups(stream)
            (delivered,) = [one["last-delivered-id"] for one in groups if one["name"] == group]
            entries: Any = client.xrange(stream, f"({delivered}", "+")
            return [entry_id for entry_id, _ in entries]

        client.xdel(stream, *scene.until(waiting, "an entry waits", seconds=SEEN))


@fault("redis", "xdel-pending")
def delete_pending(scene: Scene, draw: random.Random) -> None:
    """XDEL of all entries of a stage that were delivered, and kill -9 of the workers that had them"""
    stage = draw.choice(STAGES)
    stream, group = scene.stream(stage)
    with scene.deployment.redis() as client, _stopped(scene, stage) as readers:

        def pending() -> list[str]:
            entries: Any = client.xpending_range(stream, group, "-", "+", 100)
            return [one["message_id"] for one in entries]

        client.xdel(stream, *scene.until(pending, "an entry is pending", seconds=SEEN))
        for reader in readers:
            reader.send(signal.SIGKILL)


@contextlib.contextmanager
def _stopped(scene: Scene, stage: str) -> Iterator[list[Process]]:
    """Let no worker of a stage move, so that what Redis says of its entries stays true."""
    readers = scene.workers(stage)
    for reader in readers:
        reader.pause()
    try:
        scene.hold(0.3)  # what they had sent is answered by then
        yield readers
    finally:
        for reader in readers:
            reader.resume()


@fault("redis", "kill")
def kill(scene: Scene, draw: random.Random) -> None:
    """kill -9 of Redis, and a restart on its append-only file"""
    crash(scene.valkey)


@fault("redis", "kill-empty")
def kill_empty(scene: Scene, draw: random.Random) -> None:
    """kill -9 of Redis, 1 s without it, and a restart without any data"""
    scene.valkey.kill()
    try:
        shutil.rmtree(scene.valkey.folder / "appendonlydir")
        scene.hold(1)
    finally:
        scene.valkey.start()


@fault("redis", "pause")
def pause(scene: Scene, draw: random.Random) -> None:
    """SIGSTOP of Redis for 2 to 7 s: replies come late, or not within their timeouts"""
    pid = scene.valkey.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        scene.hold(draw.uniform(2, 7))
    finally:
        os.kill(pid, signal.SIGCONT)


@fault("redis", "client-kill")
def kill_clients(scene: Scene, draw: random.Random) -> None:
    """CLIENT KILL of all connections"""
    with scene.deployment.redis() as client:
        client.client_kill_filter(_type="normal", skipme=True)


@fault("redis", "script-flush")
def flush_scripts(scene: Scene, draw: random.Random) -> None:
    """SCRIPT FLUSH"""
    with scene.deployment.redis() as client:
        client.script_flush()


@fault("redis", "full")
def fill(scene: Scene, draw: random.Random) -> None:
    """maxmemory reached for 4 s, with noeviction: Redis takes no more writes"""
    with scene.deployment.redis() as client:
        client.config_set("maxmemory", 1)
        try:
            scene.hold(FULL)
        finally:
            client.config_set("maxmemory", 0)


@fault("redis", "evict")
def evict(scene: Scene, draw: random.Random) -> None:
    """maxmemory just below what is used, for 4 s, with allkeys-lru: one key after the other is evicted"""
    with scene.deployment.redis() as client:
        before = _evicted(client)
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            for _ in range(8):
                memory: Any = client.info("memory")
                client.config_set("maxmemory", int(memory["used_memory"]) - 1024)
                scene.hold(FULL / 8)
        finally:
            client.config_set("maxmemory", 0)
            client.config_set("maxmemory-policy", "noeviction")
        if _evicted(client) == before:
            raise Missed("nothing was evicted")


def _evicted(client: Any) -> int:
    return int(client.info("stats")["evicted_keys"])


def _groups(client: Any, stream: str) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = client.xinfo_groups(stream)
    return groups
