"""Whether many parked entries slow anybody down: the slowest commands beside 100,000 of them, as Redis counts.

The stage snoozes what it is told to. Beside all that rests, other tasks complete, a worker is killed so that its
entries are taken over, and the list of what is due is deleted so that it is made anew.
"""

import asyncio
import hashlib
import time

from tests.acceptance.deployment import ROOT, Deployment, wait_until

from .bed import bed, table
from .throughput import accept

LIMIT = 50.0
"""Milliseconds of one command that are too many: it keeps all of Redis waiting."""

SHOWN_FROM = 1_000
"""Microseconds from which a command is listed."""

BESIDE = 2_000
"""Tasks that complete beside the parked ones."""


def run(*, entries: int) -> int:
    """Park ``entries``, work beside them, print the slowest commands. Returns 5 if one took longer than ``LIMIT``."""
    with bed() as servers:
        deployment = servers.deployment("bench.work")
        try:
            slowest = _work_beside(deployment, entries)
        finally:
            deployment.close()
    print(f"{entries:,} parked entries; commands of {SHOWN_FROM / 1000:.0f} ms or more, the slowest of each kind\n")
    rows = [{"command": command, "times": str(times), "ms": f"{ms:.1f}"} for command, (times, ms) in slowest.items()]
    print(table(rows) if rows else "none")
    return 5 if any(ms > LIMIT for _, ms in slowest.values()) else 0


def _work_beside(deployment: Deployment, entries: int) -> dict[str, tuple[int, float]]:
    assert deployment.run("deploy").code == 0
    deployment.relay()
    workers = [deployment.stage("waiting.rest", name=f"worker-{place}") for place in range(2)]
    with deployment.redis() as redis:
        redis.config_set("slowlog-log-slower-than", SHOWN_FROM)
        redis.config_set("slowlog-max-len", 100_000)
        redis.slowlog_reset()
        due = f"{deployment.settings.prefix}:{{0}}:waiting.rest:due"
        asyncio.run(accept(deployment.settings, "waiting", 0, entries))
        wait_until(lambda: redis.zcard(due) == entries, "all are parked", seconds=3600, poll=0.5)

        began = time.monotonic()
        asyncio.run(accept(deployment.settings, "plain", 0, BESIDE))
        others = deployment.stage("plain.validate", "plain.allocate", "plain.finalize", name="others")
        wait_until(lambda: deployment.finished() == BESIDE, "the others complete", seconds=600, poll=0.2)
        print(f"{BESIDE:,} tasks of three stages beside them took {time.monotonic() - began:.1f} s", flush=True)

        workers[0].kill()
        redis.delete(due)
        wait_until(lambda: redis.zcard(due) == entries, "they are listed anew, and rest again", seconds=3600, poll=0.5)
        others.terminate()
        logged = redis.slowlog_get(100_000)
    slowest: dict[str, tuple[int, float]] = {}
    for one in logged:
        command = _named(one["command"].decode(errors="replace"))
        times, ms = slowest.get(command, (0, 0.0))
        slowest[command] = (times + 1, max(ms, one["duration"] / 1e3))
    deployment.audit()
    return dict(sorted(slowest.items(), key=lambda item: -item[1][1]))


def _named(command: str) -> str:
    """A command without its arguments; a script by its file. Redis lists what a script calls, too."""
    words = command.split()
    if words[0] not in ("EVAL", "EVALSHA"):
        return words[0]
    for file in ROOT.glob("*/lua/*.lua"):
        text = file.read_text("utf-8")
        digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        if words[1] == digest or command.startswith(f"EVAL {text[:40]}"):
            return str(file.relative_to(ROOT))
    return words[0]
