"""Several processes of the intake behind one port: all serve, they stop together, and one that dies is replaced."""

import asyncio
import json
import signal
from collections.abc import Callable

import httpx2
import psutil
import pytest

from postroad.client import AsyncClient
from tests.acceptance.deployment import Deployment, Process, wait_until

TASK = {"pipeline": "road", "payload": {"length": 1}}


def serve(deployment: Deployment) -> Process:
    """An intake of two processes, both of which accept."""
    assert deployment.run("deploy").code == 0
    intake = deployment.process("intake", "serve", "--workers", "2", port=0)
    deployment.await_intake(intake)
    wait_until(lambda: intake.log.count("accepting tasks on") == 2, "both processes accept")
    return intake


def workers(intake: Process) -> list[psutil.Process]:
    """The processes that serve for it."""
    return [one for one in psutil.Process(intake.pid).children() if "postroad.cli" in one.cmdline()]


def are_gone(processes: list[psutil.Process]) -> bool:
    """True if none of them runs any more."""
    return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes)


def clients(worker: psutil.Process, port: int) -> int:
    """How many are connected to it."""
    found = worker.net_connections(kind="tcp")
    return sum(one.status == psutil.CONN_ESTABLISHED and one.laddr.port == port for one in found)


def count(deployment: Deployment) -> int:
    """How many tasks there are."""
    ((tasks,),) = deployment.query("select count(*) from postroad.task")
    return int(tasks)


@pytest.mark.parametrize("is_everybody_told", [False, True], ids=["the parent is told", "all are told, as by systemd"])
async def test_both_processes_serve_and_answer_what_they_have_accepted_when_they_are_stopped(
    deployment: Deployment, is_everybody_told: bool
) -> None:
    intake = serve(deployment)
    serving = workers(intake)

    async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
        asked = [
            asyncio.create_task(client.post(f"{deployment.url}/v1/tasks", json=TASK, headers={"Prefer": "wait=30"}))
            for _ in range(40)
        ]
        await asyncio.to_thread(wait_until, lambda: count(deployment) == 40, "all are accepted")
        spread = [clients(one, deployment.settings.port) for one in serving]
        for one in serving if is_everybody_told else []:
            one.send_signal(signal.SIGTERM)
        intake.send(signal.SIGTERM)
        answers = await asyncio.gather(*asked)

    assert await asyncio.to_thread(intake.wait) == 0
    assert sum(spread) >= 40, "one of them may be that which asked whether it is ready"
    assert all(spread), spread
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["task_id"] for answer in answers}) == count(deployment) == 40
    assert are_gone(serving)
    assert all(json.loads(line)["message"] for line in intake.log.splitlines()), "a log is lines of JSON"


async def test_a_process_that_is_killed_is_replaced_while_the_other_accepts_and_nothing_is_lost_or_doubled(
    deployment: Deployment,
) -> None:
    intake = serve(deployment)
    accepted: dict[str, object] = {}
    is_over = asyncio.Event()

    async def submit(client: AsyncClient, name: int) -> None:
        number = 0
        while not is_over.is_set():
            key = f"{name}-{number}"
            accepted[key] = (await client.submit("road", {"length": 1}, key=key)).task_id
            number += 1

    async def until(condition: Callable[[], object], what: str) -> None:
        await asyncio.to_thread(wait_until, condition, what)

    async with AsyncClient(deployment.url) as client, asyncio.TaskGroup() as group:
        for name in range(20):
            group.create_task(submit(client, name))
        for round_ in (1, 2):
            await until(lambda: len(accepted) >= 100 * round_, "tasks are accepted")  # noqa: B023 - awaited here
            before = workers(intake)
            before[0].kill()
            seen = len(accepted)
            await until(lambda: len(accepted) >= seen + 20, "the other accepts")  # noqa: B023 - awaited here
            await until(lambda: intake.log.count("accepting tasks on") == 2 + round_, "it is replaced")  # noqa: B023
        is_over.set()
    after = workers(intake)

    assert intake.log.count("was killed by SIGKILL; starting it again in") == 2
    assert len(after) == 2
    assert not {one.pid for one in before[:1]} & {one.pid for one in after}
    rows = deployment.query("select key, task_id from postroad.intake_key")
    assert {key: str(task_id) for key, task_id in rows} == {key: str(task_id) for key, task_id in accepted.items()}
    assert count(deployment) == len(accepted)
    assert intake.terminate() == 0


async def test_one_key_that_a_thousand_bring_at_once_to_both_processes_is_one_task(deployment: Deployment) -> None:
    intake = serve(deployment)
    body = json.dumps(TASK)
    request = (
        "POST /v1/tasks HTTP/1.1\r\nHost: road\r\nContent-Type: application/json\r\nIdempotency-Key: once\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
    port = deployment.settings.port

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        while True:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            said = await reader.readexactly(int(head.partition("content-length: ")[2].split()[0]))
            if head.startswith("http/1.1 202"):
                return str(json.loads(said)["task_id"])
            # It is being committed, and that takes long here: come again.
            assert head.startswith("http/1.1 409"), head
            assert "retry-after" in head

    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(1000)]
    try:
        told = await asyncio.gather(*(ask(*streams) for streams in opened))
        spread = [clients(one, port) for one in workers(intake)]
    finally:
        for _, writer in opened:
            writer.close()

    assert min(spread) > 300, "it came to one process alone, or nearly"
    assert len(set(told)) == 1
    assert deployment.query("select key, task_id::text from postroad.intake_key") == [("once", told[0])]
    assert count(deployment) == 1


def test_a_port_that_several_processes_share_already_is_taken(deployment: Deployment) -> None:
    intake = serve(deployment)
    serving = workers(intake)

    for number in ("1", "2"):
        ended = deployment.run("serve", "--workers", number)
        errors = [line for line in map(json.loads, ended.err.splitlines()) if line["level"] == "error"]
        assert ended.code == 1
        assert ["address already in use" in error["message"] for error in errors] == [True]

    assert workers(intake) == serving
    assert deployment.get("/readyz").status_code == 200


def test_processes_do_not_outlive_a_parent_that_is_killed(deployment: Deployment) -> None:
    intake = serve(deployment)
    serving = workers(intake)

    intake.kill()

    wait_until(lambda: are_gone(serving), "they have ended")


def test_a_second_sigterm_ends_all_at_once_with_130(deployment: Deployment) -> None:
    intake = serve(deployment)
    serving = workers(intake)
    serving[0].suspend()  # so that it does not end before

    intake.send(signal.SIGTERM)
    wait_until(lambda: are_gone(serving[1:]), "the other has ended")
    assert intake.is_running
    intake.send(signal.SIGTERM)

    assert intake.wait() == 130
    wait_until(lambda: are_gone(serving), "both have ended")
