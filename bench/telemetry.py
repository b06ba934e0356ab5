"""What telemetry costs: how fast the standard work drains with metrics, and with traces of some tasks or of all.

Short rounds in turn. Other work on the machine makes a round slower, and never faster: so of each way the round counts
that was disturbed least. Spans go to a collector that throws them away, on the same machine.
"""

import asyncio
import random
import statistics
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from postroad.core.database import make_engine
from postroad.core.settings import Settings
from tests.acceptance.deployment import Deployment, Process, wait_until

from .bed import Bed, bed, cpu_seconds, table
from .throughput import LEASE, WARM_UP, accept
from .work import STAGES

PIPELINE = "plain"
METRICS = {"POSTROAD_METRICS": "127.0.0.1:0"}
NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Way:
    """A way to be seen: variables of the processes, and the share of tasks that are traced."""

    name: str
    variables: Mapping[str, str]
    traced: float = 0.0


@dataclass(frozen=True, slots=True)
class Round:
    """One drain: tasks a second, and ms of CPU per task of relay and worker."""

    per_second: float
    cpu: float


@dataclass(slots=True)
class Sink:
    """Where spans go, and how many requests with spans there were."""

    url: str = ""
    requests: int = 0


def run(*, tasks: int, repeat: int) -> int:
    """Measure and print."""
    print(f"{tasks:,} tasks through {len(STAGES)} stages in one worker; the best of {repeat} rounds each, in turn\n")
    with bed() as servers, _sink() as sink:
        tracing = METRICS | {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{sink.url}/v1/traces",
            "OTEL_BSP_SCHEDULE_DELAY": "1000",
        }
        ways = [
            Way(NOTHING, {}),
            Way("metrics", METRICS),
            Way("metrics, 1 % traced", tracing, 0.01),
            Way("metrics, 100 % traced", tracing, 1.0),
        ]
        turns = []
        for turn in range(repeat):
            # Never in the same order: the first of a turn would have the warmest, or the coldest, of it.
            order = random.Random(turn).sample(ways, len(ways))
            turns.append({way.name: _drain(servers, sink, way, tasks) for way in order})
    print(table([_row(way.name, turns) for way in ways]))
    return 0


def _row(name: str, turns: list[dict[str, Round]]) -> Mapping[str, str]:
    fastest, least = (
        {way: best(getattr(turn[way], figure) for turn in turns) for way in (name, NOTHING)}
        for best, figure in ((max, "per_second"), (min, "cpu"))
    )
    paired = statistics.median(turn[name].per_second / turn[NOTHING].per_second for turn in turns)
    return {
        "": name,
        "tasks/s": f"{fastest[name]:,.0f}",
        "of nothing": f"{fastest[name] / fastest[NOTHING]:.3f}",
        "median of the turns": f"{paired:.3f}",
        "CPU ms/task": f"{least[name]:.2f}",
        "CPU of nothing": f"{least[name] / least[NOTHING]:.3f}",
    }


def _drain(servers: Bed, sink: Sink, way: Way, tasks: int) -> Round:
    deployment = servers.deployment("bench.work", lease=LEASE)
    try:
        assert deployment.run("deploy").code == 0
        asyncio.run(accept(deployment.settings, PIPELINE, 0, WARM_UP))
        # The first spans, and the first that are sent, load much code: that is not what a task costs.
        asyncio.run(_trace(deployment.settings, 1.0 if way.traced else 0.0))
        sink.requests = 0
        processes = [_start(deployment, "relay", way), _start(deployment, "worker", way)]
        processes[0].await_line("relaying from")
        processes[1].await_line("working on")
        deployment.wait_until_finished(WARM_UP)
        if way.traced:
            wait_until(lambda: sink.requests >= len(processes), "both have sent spans")
        for process in processes:
            process.pause()
        asyncio.run(accept(deployment.settings, PIPELINE, WARM_UP, tasks))
        asyncio.run(_trace(deployment.settings, way.traced))
        deployment.execute("checkpoint")
        before = sum(cpu_seconds(process.pid) for process in processes)
        for process in processes:
            process.resume()
        wait_until(lambda: deployment.finished() == WARM_UP + tasks, "all are finished", seconds=3600, poll=0.2)
        used = sum(cpu_seconds(process.pid) for process in processes) - before
        ((seconds,),) = deployment.query(
            "select extract(epoch from max(finished_at) - min(finished_at))::float from postroad.stage_run join"
            " (select task_id from postroad.task order by task_id offset %s) as drained using (task_id)",
            WARM_UP,
        )
        return Round(tasks / seconds, used * 1e3 / tasks)
    finally:
        deployment.close()


def _start(deployment: Deployment, name: str, way: Way) -> Process:
    arguments = ["relay"] if name == "relay" else ["stage", *(f"{PIPELINE}.{stage}" for stage in STAGES)]
    environment = deployment.environment() | dict(way.variables)
    process = Process(name, arguments, environment, deployment.folder, Path.cwd())
    deployment.processes[name] = process
    process.start()
    return process


async def _trace(settings: Settings, share: float) -> None:
    """Let so large a share of the tasks be recorded, as the door would have decided, by their traces."""
    engine = make_engine(settings, application="postroad bench", pool=3)
    async with engine.begin() as connection:
        for table_name in ("task", "outbox"):
            await connection.exec_driver_sql(
                f"update postroad.{table_name} set traceparent = left(traceparent, 53) || '01'"  # noqa: S608 - ours
                " where ('x' || substr(traceparent, 28, 8))::bit(32)::bigint < %(share)s * 4294967296",
                {"share": share},
            )
    await engine.dispose()


@contextmanager
def _sink() -> Iterator[Sink]:
    """A collector that throws away what it is sent."""
    sink = Sink()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            sink.requests += 1
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        sink.url = f"http://127.0.0.1:{server.server_port}"
        yield sink
    finally:
        server.shutdown()
        server.server_close()
