"""How many tasks a second the standard work drains at, beside the ceiling in the same run, and what it costs.

The tasks are all accepted before a relay or a worker starts; the time is that from the first stored result to the last.
CPU is counted from the start of the drain, the start of the processes left out.
"""

import asyncio
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from postroad.core.database import make_engine
from postroad.core.priority import Priority
from postroad.core.settings import Settings
from postroad.core.task import new_task_id
from postroad.core.telemetry import continued
from postroad.outbox.submit import Submission
from postroad.outbox.submit import accept as accept_group
from tests.acceptance.deployment import Deployment, wait_until

from . import ceiling
from .bed import Bed, bed, cpu_seconds, table
from .work import RESULT_TABLE, STAGES, order

TASKS = 10_000
OWN_TRANSACTION_SHARE = 5
"""Handlers with a transaction of their own commit one by one, and are given so many times fewer tasks."""

WARM_UP = 200
"""Tasks that go through before: connections, plans and code are warm then."""

LEASE = timedelta(minutes=5)
"""Longer than the workers are held back while the backlog is made."""


@dataclass(frozen=True, slots=True)
class Drain:
    """One drain. CPU is in ms per task; of postroad's clients there are ``relay`` and ``workers``."""

    name: str
    per_second: float
    relay: float | None
    workers: float
    postgres: float
    redis: float | None


def run(*, tasks: int, repeat: int) -> int:
    """Measure and print. Returns 1 if a result is missing or doubled."""
    print(f"{tasks:,} tasks through {len(STAGES)} stages, every result durable; median of {repeat}\n")
    with bed() as servers:
        drains: list[list[Drain]] = []
        for _ in range(repeat):
            drains.append([_ceiling(servers, tasks)])
            for pipeline, count in (("plain", tasks), ("own-transaction", tasks // OWN_TRANSACTION_SHARE)):
                drains[-1].append(_drain(servers, pipeline, [[f"{pipeline}.{stage}"] for stage in STAGES], count))
                drains[-1].append(_drain(servers, pipeline, [[f"{pipeline}.{stage}" for stage in STAGES]], count))
            drains[-1].append(_drain(servers, "prioritized", [[f"prioritized.{stage}"] for stage in STAGES], tasks))
    medians = [sorted(one, key=lambda drain: drain.per_second)[len(one) // 2] for one in zip(*drains, strict=True)]
    baseline = statistics.median(one[0].per_second for one in drains)
    print(table([_row(drain, baseline) for drain in medians]))
    return 0


def _row(drain: Drain, baseline: float) -> Mapping[str, str]:
    def ms(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    return {
        "": drain.name,
        "tasks/s": f"{drain.per_second:,.0f}",
        "of ceiling": f"{drain.per_second / baseline:.2f}",
        "relay ms/task": ms(drain.relay),
        "workers ms/task": ms(drain.workers),
        "Postgres ms/task": ms(drain.postgres),
        "Redis ms/task": ms(drain.redis),
    }


def _ceiling(servers: Bed, tasks: int) -> Drain:
    deployment = servers.deployment("bench.work")
    before = cpu_seconds(servers.postgres.pid)
    seconds, cpu = ceiling.drain(deployment.settings.database_url, tasks)
    postgres = cpu_seconds(servers.postgres.pid) - before
    return Drain(
        "ceiling: psycopg, 500 a commit", tasks / seconds, None, cpu * 1e3 / tasks, postgres * 1e3 / tasks, None
    )


def _drain(servers: Bed, pipeline: str, processes: list[list[str]], tasks: int) -> Drain:
    deployment = servers.deployment("bench.work", lease=LEASE)
    deployment.execute(RESULT_TABLE)
    try:
        return _measure(servers, deployment, pipeline, processes, tasks)
    finally:
        deployment.close()


def _measure(servers: Bed, deployment: Deployment, pipeline: str, processes: list[list[str]], tasks: int) -> Drain:
    assert deployment.run("deploy").code == 0
    asyncio.run(accept(deployment.settings, pipeline, 0, WARM_UP))
    relay = deployment.relay()
    workers = [deployment.stage(*names, name=f"worker-{place}") for place, names in enumerate(processes)]
    deployment.wait_until_finished(WARM_UP)
    # Stopped in their tracks, so that all of the backlog is there when they begin.
    for process in (relay, *workers):
        process.pause()
    asyncio.run(accept(deployment.settings, pipeline, WARM_UP, tasks))
    deployment.execute("checkpoint")
    clients = {process.name: process.pid for process in (relay, *workers)}
    pids = clients | {"postgres": servers.postgres.pid, "redis": servers.valkey.pid}
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    for process in (relay, *workers):
        process.resume()
    wait_until(lambda: deployment.finished() == WARM_UP + tasks, "all tasks are finished", seconds=3600, poll=0.5)
    used = {name: (cpu_seconds(pid) - before[name]) * 1e3 / tasks for name, pid in pids.items()}
    _check(deployment, pipeline, tasks)
    ((seconds,),) = deployment.query(
        "select extract(epoch from max(finished_at) - min(finished_at))::float from postroad.stage_run join"
        " (select task_id from postroad.task order by task_id offset %s) as drained using (task_id)",
        WARM_UP,
    )
    return Drain(
        f"postroad: {pipeline}, {len(processes)} worker{'s' if len(processes) > 1 else ''}",
        tasks / seconds,
        used.pop("relay"),
        sum(cpu for name, cpu in used.items() if name.startswith("worker")),
        used["postgres"],
        used["redis"],
    )


def _priority(pipeline: str, number: int) -> Priority:
    """Where there are priorities, of ten tasks one is high and three are low."""
    if pipeline != "prioritized":
        return Priority.NORMAL
    return {0: Priority.HIGH, 1: Priority.LOW, 2: Priority.LOW, 3: Priority.LOW}.get(number % 10, Priority.NORMAL)


async def accept(settings: Settings, pipeline: str, first: int, tasks: int) -> None:
    """Accept ``tasks`` orders from number ``first`` on, 1,000 a commit."""
    engine = make_engine(settings, application="postroad bench", pool=3)
    for start in range(first, first + tasks, 1000):
        numbers = range(start, min(start + 1000, first + tasks))
        group = [
            Submission(
                new_task_id(),
                pipeline,
                json.dumps(order(number)),
                "{}",
                continued(None),
                priority=_priority(pipeline, number),
            )
            for number in numbers
        ]
        async with engine.begin() as connection:
            await accept_group(connection, group, settings.schema)
    await engine.dispose()


def _check(deployment: Deployment, pipeline: str, tasks: int) -> None:
    """Every stage of every task is done once, with its effect once."""
    deployment.audit()
    ((done, completed),) = deployment.query(
        "select (select count(*) from postroad.stage_run where status = 'done' and result is not null),"
        " (select count(*) from postroad.task where status = 'completed')"
    )
    assert (done, completed) == ((WARM_UP + tasks) * len(STAGES), WARM_UP + tasks)
    if pipeline == "own-transaction":
        ((rows, distinct),) = deployment.query("select count(*), count(distinct (task_id, stage)) from bench_result")
        assert (rows, distinct) == (done, done)
