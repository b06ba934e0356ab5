"""A batch in a process of its own: what it takes of it, whatever its size."""

import json
import socket
from pathlib import Path

import pytest

from tests.acceptance.deployment import Deployment, Process

LINE = json.dumps({"pipeline": "road", "payload": {"length": 1, "text": "x" * 1400}}).encode() + b"\n"


def send(deployment: Deployment, body: bytes) -> list[int]:
    """Send a whole batch before anything of the answer is read, as many clients do; the statuses of the answers."""
    head = (
        "POST /v1/tasks:batch HTTP/1.1\r\nHost: door\r\nConnection: close\r\n"
        f"Content-Type: application/x-ndjson\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", deployment.settings.port), timeout=60) as connection:
        connection.sendall(head.encode() + body)
        answer = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    assert answer.startswith(b"HTTP/1.1 200 "), answer[:300]
    return [json.loads(line)["status"] for line in answer.partition(b"\r\n\r\n")[2].splitlines()]


def most_memory(process: Process) -> int:
    """Bytes that a process has ever had in memory at once."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the most memory of a process")
def test_a_batch_of_10_000_lines_takes_less_memory_than_its_body(deployment: Deployment) -> None:
    assert deployment.run("deploy").code == 0
    intake = deployment.serve()
    body = LINE * 10_000
    long = b"x" * len(body) + b"\n" + LINE
    for _ in range(3):
        assert send(deployment, LINE * 300) == [202] * 300
    before = most_memory(intake)

    assert send(deployment, body) == [202] * 10_000
    assert send(deployment, long) == [413, 202]

    assert most_memory(intake) - before < len(body)
    assert deployment.query("select count(*) from postroad.task") == [(10_901,)]
