"""What a transaction that stays open does to the relay: its rate with one, as a ratio to its rate without, in turns.

The transaction has written, so that it holds back the horizon of every snapshot taken meanwhile.
"""

import asyncio
import statistics
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import psycopg

from tests.acceptance.deployment import Deployment, wait_until

from .bed import bed, cpu_seconds, table
from .throughput import accept


def run(*, events: int, repeat: int) -> int:
    """Publish ``events`` with such a transaction and without, ``repeat`` times in turns; print the rates."""
    rates: dict[str, list[float]] = {"quiet": [], "idle transaction": []}
    cpu: dict[str, list[float]] = {name: [] for name in rates}
    with bed() as servers:
        deployment = servers.deployment("bench.work")
        try:
            assert deployment.run("deploy").code == 0
            deployment.relay()
            _publish(deployment, 1000)
            for _ in range(repeat):
                for name in rates:
                    with _idle(deployment) if name != "quiet" else nullcontext():
                        seconds, used = _publish(deployment, events)
                    rates[name].append(events / seconds)
                    cpu[name].append(used * 1e6 / events)
            deployment.audit()
        finally:
            deployment.close()
    baseline = statistics.median(rates["quiet"])
    print(
        table(
            [
                {
                    "": name,
                    "events/s": f"{statistics.median(rates[name]):,.0f}",
                    "of quiet": f"{statistics.median(rates[name]) / baseline:.2f}",
                    "spread": f"{min(rates[name]) / baseline:.2f} to {max(rates[name]) / baseline:.2f}",
                    "relay µs/event": f"{statistics.median(cpu[name]):.0f}",
                }
                for name in rates
            ]
        )
    )
    return 0


def _publish(deployment: Deployment, events: int) -> tuple[float, float]:
    """Let the relay publish a backlog: seconds by the clock, and of its CPU."""
    relay = deployment.processes["relay"]
    relay.pause()
    asyncio.run(accept(deployment.settings, "plain", 0, events))
    with deployment.redis() as redis:
        stream = f"{deployment.settings.prefix}:{{0}}:plain.validate:stream"
        wanted = redis.xlen(stream) + events
        before = cpu_seconds(relay.pid)
        ((began,),) = deployment.query("select extract(epoch from clock_timestamp())::float")
        relay.resume()
        wait_until(lambda: redis.xlen(stream) == wanted, "the backlog is published", seconds=600, poll=0.02)
        ((ended,),) = deployment.query("select extract(epoch from clock_timestamp())::float")
    return ended - began, cpu_seconds(relay.pid) - before


@contextmanager
def _idle(deployment: Deployment) -> Iterator[None]:
    """A transaction that has appended an event, and does no more."""
    with psycopg.connect(deployment.settings.database_url) as connection:
        connection.execute(
            "insert into postroad.outbox (task_id, pipeline, type) values (gen_random_uuid(), 'plain', 'Forgotten')"
        )
        yield
        connection.rollback()
