"""The pipeline that is put under fire: fan-out, fan-in, handlers of all three kinds, and what misbehaves if told to.

What a handler does is written in the payload of its task: how long it takes (``seconds``), how often it fails before it
succeeds (``fails``), and what harm it does (``do``, for ``blocked`` seconds) at which stage (``at``).
"""

import asyncio
import os
import signal
import time
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from postroad import Pipeline, Retry, Task

EFFECT_TABLE = "create table effect (task_id uuid not null, stage text not null)"
"""No constraint: a second effect must be seen, not refused."""

WITH_EFFECT = ("weigh", "deliver")
"""The stages that leave a row, in their own transactions."""

STAGES = ("weigh", "sort", "label", "deliver")

FAILING_STAGE = "sort"
"""The stage that fails now and then."""

WORKERS = {
    "weigh-1": ("weigh", "deliver"),
    "weigh-2": ("weigh", "deliver"),
    "sort-1": ("sort",),
    "sort-2": ("sort",),
    "label-1": ("label",),
}
"""The worker processes, and the stages of each."""

TIMEOUT = 5.0
"""Seconds that an attempt may take."""

RETRIES = 20
"""So many that no attempt which a fault has cost makes a dead letter."""

_RECORD = text("insert into effect (task_id, stage) values (:task_id, :stage)")

parcel = Pipeline("parcel")


async def record(task: Task, connection: AsyncConnection) -> None:
    """Leave a row that commits with the outcome."""
    await connection.execute(_RECORD, {"task_id": task.task_id, "stage": task.stage})


def harm(task: Task) -> str | None:
    """What this attempt must do instead of its work; kills or blocks at once."""
    if task.payload.get("at") != task.stage:
        return None
    match task.payload["do"]:
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "block" if task.attempt == 1:
            time.sleep(task.payload["blocked"])
        case "hang" if task.attempt == 1:
            return "hang"
    return None


async def work(task: Task) -> None:
    """Take as long as the payload says, fail as often as it says."""
    if harm(task) == "hang":
        await asyncio.Event().wait()
    await asyncio.sleep(task.payload["seconds"])
    if task.stage == FAILING_STAGE and task.attempt <= task.payload["fails"]:
        raise Retry("the parcel fell off the belt", after=0.2)


@parcel.stage(timeout=TIMEOUT, retries=RETRIES)
async def weigh(task: Task, connection: AsyncConnection) -> int:
    """The first stage, with an effect of its own."""
    await record(task, connection)
    await work(task)
    return int(task.payload["grams"])


@parcel.stage(after="weigh", timeout=TIMEOUT, retries=RETRIES)
async def sort(task: Task) -> str:
    """On the event loop; fails now and then."""
    await work(task)
    return "heavy" if task.results["weigh"] > 1000 else "light"


@parcel.stage(after="weigh", timeout=TIMEOUT, retries=RETRIES)
def label(task: Task) -> str:
    """In a thread."""
    if harm(task) == "hang":
        time.sleep(3600)
    time.sleep(task.payload["seconds"] / 2)
    return f"{task.results['weigh']} g"


@parcel.stage(after=("sort", "label"), timeout=TIMEOUT, retries=RETRIES)
async def deliver(task: Task, connection: AsyncConnection) -> dict[str, Any]:
    """The last stage, which waits for both, with an effect of its own."""
    await record(task, connection)
    return {"belt": task.results["sort"], "label": task.results["label"]}
