"""How long a deployment takes to heal, and what there is to see if it does not."""

import sys
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import psycopg
import redis

from tests.acceptance.deployment import tails

from .app import STAGES
from .scene import Scene

POLL = 0.1
"""Seconds between two looks."""


def heal(scene: Scene, given_up: set[str]) -> float | None:
    """Seconds from now until all is well, or ``None`` if it is not within the limit; then ``given_up`` grows.

    All is well when every task that is open now is terminal, and one that was accepted later, too. ``given_up`` are
    tasks that nobody waits for any more.
    """
    began = time.monotonic()
    accepted = len(scene.load.accepted)
    waiting: set[str] | None = None
    while True:
        with suppress(psycopg.Error):
            if waiting is None:
                waiting = _open(scene) - given_up
            if newer := list(scene.load.accepted.values())[accepted : accepted + 1]:
                waiting |= set(newer)
            waiting &= _open(scene, waiting)
            if newer and not waiting:
                return time.monotonic() - began
        if time.monotonic() - began > scene.limit:
            given_up |= waiting or set()
            return None
        scene.hold(POLL)


def _open(scene: Scene, of: Collection[str] | None = None) -> set[str]:
    rows = scene.query(
        "select task_id::text from postroad.task"
        " where status in ('pending', 'in_progress') and (%s::uuid[] is null or task_id = any(%s::uuid[]))",
        *(2 * [None if of is None else list(of)]),
    )
    return {task_id for (task_id,) in rows}


def evidence(scene: Scene, tasks: Collection[str]) -> None:
    """Print to stderr what Postgres, Redis and the processes know of ``tasks``, that do not end."""

    def say(line: object) -> None:
        print(line, file=sys.stderr)

    say(f"--- {len(tasks)} tasks do not end")
    with suppress(psycopg.Error):
        for task_id in sorted(tasks)[:3]:
            say(scene.query("select to_jsonb(task) from postroad.task where task_id = %s::uuid", task_id))
            say(scene.query("select to_jsonb(stage_run) from postroad.stage_run where task_id = %s::uuid", task_id))
            say(
                scene.query(
                    "select position, type, stage, occurred_at::text, data from postroad.outbox"
                    " where task_id = %s::uuid order by position",
                    task_id,
                )
            )
        say(scene.query("select max(tick), max(made_at)::text, now()::text from postroad.tick"))
    with suppress(redis.RedisError, OSError), scene.deployment.redis() as client:
        say(f"marker {client.get(scene.marker)}")
        for stage in STAGES:
            stream, group = scene.stream(stage)
            with suppress(redis.ResponseError):
                views: list[Any] = [
                    client.xinfo_groups(stream),
                    client.xinfo_consumers(stream, group),
                    client.xpending_range(stream, group, "-", "+", 5),
                    client.xrange(stream, "-", "+", 5),
                ]
                for view in views:
                    say(f"{stage}: {view}")
        say(sorted(client.keys("*:alive:*")))
    say(tails(scene.deployment.processes.values(), lines=12))
