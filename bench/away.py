"""What a service costs that is away: attempts of its own tasks, and the throughput of a stage beside it.

One process runs both stages: one whose work a service does, and one that is a plain function with a backlog that never
ends. First the service answers, then nobody listens at its port, then it answers again: usual is what was before and
after. On a machine with other work the CPU that the process took for a task says more than tasks/s.
"""

import asyncio
import os
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from postroad import HttpStage, Pipeline, Task
from tests.acceptance.deployment import Deployment, wait_until

from .bed import bed, cpu_seconds, table
from .throughput import accept
from .work import compute

CALLS = 50
"""Tasks for the service that come in each second."""

BACKLOG = 3000
"""Tasks that the stage beside it has waiting, at least."""

WARM_UP = 5.0
"""Seconds that are not measured: connections, plans and code are warm then."""

_URL = "BENCH_AWAY_URL"

away = Pipeline("away")
away.add("call", HttpStage(f"${{{_URL}}}"), retries=3, timeout=5)

beside = Pipeline("beside")


@beside.stage()
async def go(task: Task) -> dict[str, Any]:
    """Compute, and return it."""
    return compute("validate", task.payload)


class _Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: object) -> None: ...


class _Server(ThreadingHTTPServer):
    request_queue_size = 256


@dataclass(slots=True)
class Service:
    """Answers 204, without keeping connections; nobody listens while it is stopped."""

    port: int = 0
    _server: ThreadingHTTPServer | None = field(default=None, init=False)

    def start(self) -> None:
        """Listen: on a free port, and after a stop on the same one."""
        self._server = _Server(("127.0.0.1", self.port), _Answers)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        """Refuse connections from now on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        self._server = None


@dataclass(frozen=True, slots=True)
class _Window:
    """From when to when, by Postgres' clock, and the seconds of CPU that the worker took."""

    began: datetime
    ended: datetime
    cpu: float

    @property
    def seconds(self) -> float:
        return (self.ended - self.began).total_seconds()


def run(*, seconds: float) -> int:
    """Measure for ``seconds`` with the service, without it, and with it again; print all. Returns the exit code."""
    service = Service()
    service.start()
    os.environ[_URL] = f"http://127.0.0.1:{service.port}/"
    with bed() as servers:
        deployment = servers.deployment("bench.away")
        try:
            return _measure(deployment, service, seconds)
        finally:
            deployment.close()
            service.stop()


def _measure(deployment: Deployment, service: Service, seconds: float) -> int:
    assert deployment.run("deploy").code == 0
    deployment.relay()
    worker = deployment.stage("away.call", "beside.go")
    _load(deployment, WARM_UP)
    well = _load(deployment, seconds)
    service.stop()
    ill = _load(deployment, seconds)
    probes = worker.log.count("one attempt is let through to see")
    service.start()
    back = time.monotonic()
    wait_until(lambda: "goes on: its service answers" in worker.log, "the service is found back", seconds=120)
    found = time.monotonic() - back
    ((tasks,),) = deployment.query("select count(*) from postroad.task where pipeline = 'away'")
    wait_until(lambda: _completed(deployment) == tasks, "all calls are made", seconds=600, poll=0.2)
    drained = time.monotonic() - back
    again = _load(deployment, seconds)
    ((lost, most),) = deployment.query(
        "select sum(attempts - 1)::int, max(attempts - 1)::int from postroad.stage_run where stage = 'call'"
    )
    print(f"{CALLS} calls/s to a service, away for {seconds:g} s; a plain stage with a backlog in the same process\n")
    windows = {"service up": well, "service away": ill, "service up again": again}
    rates = {name: _rate(deployment, "go", window) for name, window in windows.items()}
    calls = {name: _rate(deployment, "call", window) for name, window in windows.items()}
    usual = (rates["service up"] + rates["service up again"]) / 2
    rows = [
        {
            "": name,
            "plain tasks/s": f"{rates[name]:,.0f}",
            "of up": f"{rates[name] / usual:.2f}",
            "calls/s": f"{calls[name]:,.1f}",
            "worker ms/task": f"{window.cpu * 1e3 / (window.seconds * (rates[name] + calls[name])):.2f}",
        }
        for name, window in windows.items()
    ]
    print(table(rows))
    print(
        f"\n{tasks:,} tasks came for the service until it was back. Attempts lost: {lost}, at most {most} of one task."
        f" Probes while it was away: {probes}."
        f"\nFound back after {found:.1f} s, backlog done after {drained:.1f} s."
    )
    deployment.audit()
    return 5 if most > 1 else 0


def _load(deployment: Deployment, seconds: float) -> _Window:
    """Submit to both pipelines for ``seconds``."""
    pid = deployment.processes["worker"].pid
    before = cpu_seconds(pid)
    ((began,),) = deployment.query("select clock_timestamp()")
    start = time.monotonic()
    stream = f"{deployment.settings.prefix}:{{0}}:beside.go:stream"
    submitted = 0
    with deployment.redis() as client:
        while (passed := time.monotonic() - start) < seconds:
            due = round(passed * CALLS)
            asyncio.run(accept(deployment.settings, "away", submitted, due - submitted))
            submitted = due
            if client.xlen(stream) < BACKLOG:
                asyncio.run(accept(deployment.settings, "beside", 0, 1000))
            time.sleep(0.05)
    ((ended,),) = deployment.query("select clock_timestamp()")
    return _Window(began, ended, cpu_seconds(pid) - before)


def _completed(deployment: Deployment) -> int:
    ((completed,),) = deployment.query(
        "select count(*) from postroad.task where pipeline = 'away' and status = 'completed'"
    )
    return int(completed)


def _rate(deployment: Deployment, stage: str, window: _Window) -> float:
    """Successes of ``stage`` a second within ``window``."""
    ((done,),) = deployment.query(
        "select count(*) from postroad.stage_run"
        " where stage = %s and status = 'done' and finished_at between %s and %s",
        stage,
        window.began,
        window.ended,
    )
    return int(done) / window.seconds
