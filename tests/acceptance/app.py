"""The pipelines of the acceptance tests. What a handler does is written in the payload of its task.

Handlers that take a connection leave a row in ``effect``, which has no constraint that would hide a second one.
"""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from postroad import Pipeline, Reject, Retry, Snooze, Task

EFFECT_TABLE = "create table effect (task_id uuid not null, stage text not null, pid int not null)"

_RECORD = text("insert into effect (task_id, stage, pid) values (:task_id, :stage, :pid)")

POLL = 0.01

road = Pipeline("road")


async def record(task: Task, connection: AsyncConnection) -> None:
    """Leave a row that commits with the outcome."""
    await connection.execute(_RECORD, {"task_id": task.task_id, "stage": task.stage, "pid": os.getpid()})


@road.stage()
async def survey(task: Task, connection: AsyncConnection) -> dict[str, Any]:
    """The first stage, with an effect of its own."""
    await record(task, connection)
    return {"length": task.payload["length"]}


@road.stage(after="survey")
async def pave(task: Task) -> dict[str, Any]:
    """On the event loop."""
    await asyncio.sleep(task.payload.get("seconds", 0))
    return {"stones": task.results["survey"]["length"] * 100}


@road.stage(after="survey")
def mark(task: Task) -> dict[str, Any]:
    """In a thread."""
    return {"milestones": task.results["survey"]["length"]}


@road.stage(after=("pave", "mark"))
async def finish(task: Task, connection: AsyncConnection) -> dict[str, Any]:
    """The last stage, with what the two before it returned."""
    await record(task, connection)
    return {"opened": task.results["pave"]["stones"] + task.results["mark"]["milestones"]}


hazard = Pipeline("hazard")


def announce(task: Task) -> None:
    """Say that this attempt has begun: a file in the folder that the payload names."""
    if "folder" in task.payload:
        Path(task.payload["folder"], f"{task.task_id}-{os.getpid()}").touch()


async def act(task: Task) -> None:
    """Do what the payload says: wait until ``gate`` is there, ``do`` it, and take ``seconds``."""
    announce(task)
    payload = task.payload
    while not is_there(payload.get("gate")):  # noqa: ASYNC110 - a file is what another process can make
        await asyncio.sleep(POLL)
    match payload.get("do"):
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
        case "retry once" if task.attempt == 1:
            raise Retry("once", after=0.1)
        case "snooze once" if is_first(Path(payload["flag"])):
            raise Snooze(0.1, "once")
        case "reject without" if not is_there(payload["flag"]):
            raise Reject("the bridge is closed")
        case "fail":
            raise OSError(f"the bridge at {task.task_id} is broken")
    await asyncio.sleep(payload.get("seconds", 0))


def is_there(path: str | None) -> bool:
    """Whether the file is there, or none was asked for."""
    return path is None or Path(path).exists()


def is_first(flag: Path) -> bool:
    """True for the first who asks."""
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@hazard.stage(retries=2)
async def cross(task: Task) -> int:
    """On the event loop; its outcome commits with others'."""
    await act(task)
    return task.attempt


hazard_in_transaction = Pipeline("hazard-in-transaction")


@hazard_in_transaction.stage(name="cross", retries=2)
async def cross_in_transaction(task: Task, connection: AsyncConnection) -> int:
    """In its own transaction."""
    await record(task, connection)
    await act(task)
    return task.attempt


hazard_in_thread = Pipeline("hazard-in-thread")


@hazard_in_thread.stage(name="cross", retries=2)
def cross_in_thread(task: Task) -> int:
    """In a thread, where it cannot be cancelled."""
    announce(task)
    while not is_there(task.payload.get("gate")):
        time.sleep(POLL)
    return task.attempt
