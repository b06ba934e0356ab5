"""Whether a rate holds over several processes, and is used up: attempts that began, as a share of rate and burst.

Three times: undisturbed, while Redis forgets its scripts ten times a second, and while it is full and refuses to count.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import redis

from tests.acceptance.deployment import Deployment, wait_until

from .bed import bed, table
from .throughput import accept
from .work import BURST, RATE

PROCESSES = 4

LEASE = timedelta(seconds=4)
"""Every quarter of it they look how many they are, which is what their shares go by while Redis is full."""

Disturb = Callable[[redis.Redis], contextlib.AbstractContextManager[None]]


def run(*, seconds: float) -> int:
    """Measure for ``seconds`` each time; print the shares."""
    rows = []
    with bed() as servers:
        for name, disturb in (("undisturbed", _leave), ("SCRIPT FLUSH every 0.1 s", _forget), ("Redis is full", _fill)):
            deployment = servers.deployment("bench.work", lease=LEASE)
            try:
                began = _work(deployment, seconds, disturb)
            finally:
                deployment.close()
            allowed = RATE * seconds + BURST
            rows.append(
                {"": name, "began": f"{began:,}", "allowed": f"{allowed:,.0f}", "share": f"{began / allowed:.1%}"}
            )
    print(f"{PROCESSES} processes of a stage of {RATE}/s, {BURST} at once, for {seconds:g} s\n")
    print(table(rows))
    return 0


def _work(deployment: Deployment, seconds: float, disturb: Disturb) -> int:
    """How many attempts began in the ``seconds`` from the first one on."""
    assert deployment.run("deploy").code == 0
    deployment.relay()
    stream = f"{deployment.settings.prefix}:{{0}}:limited.go:stream"
    tasks = round(RATE * seconds * 1.5)
    asyncio.run(accept(deployment.settings, "limited", 0, tasks))
    with deployment.redis() as client:
        wait_until(lambda: client.xlen(stream) == tasks, "all are in the stream", seconds=120)
        for place in range(PROCESSES):
            deployment.stage("limited.go", name=f"worker-{place}")
        with disturb(client):
            time.sleep(seconds + 2)
    ((began,),) = deployment.query(
        "select count(*) from postroad.stage_run where started_at <"
        " (select min(started_at) from postroad.stage_run) + make_interval(secs => %s)",
        seconds,
    )
    return int(began)


@contextmanager
def _leave(client: redis.Redis) -> Iterator[None]:
    yield


@contextmanager
def _forget(client: redis.Redis) -> Iterator[None]:
    is_over = threading.Event()

    def forget() -> None:
        while not is_over.wait(0.1):
            client.script_flush()

    thread = threading.Thread(target=forget)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def _fill(client: redis.Redis) -> Iterator[None]:
    client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)
