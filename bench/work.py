"""The standard work: three stages in order, each computing a small dict from an order of about 300 bytes.

Twice: by plain handlers, whose outcomes commit together, and by handlers with a transaction of their own, in which each
also writes a row; the plain ones also in a pipeline with priorities. And a stage that only waits, and one with a rate.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from postroad import Pipeline, Snooze, Task

STAGES = ("validate", "allocate", "finalize")

RESULT_TABLE = "create table bench_result (task_id uuid not null, stage text not null, lines int not null)"

_RECORD = text("insert into bench_result (task_id, stage, lines) values (:task_id, :stage, :lines)")

RATE, BURST = 500, 50

plain = Pipeline("plain")
own = Pipeline("own-transaction")
prioritized = Pipeline("prioritized", priorities=True)
waiting = Pipeline("waiting")
limited = Pipeline("limited")


def order(number: int) -> dict[str, Any]:
    """The payload of task ``number``."""
    return {
        "order": number,
        "customer": f"customer-{number % 9_973:06}",
        "currency": "EUR",
        "lines": [
            {"sku": f"SKU-{(number * 7 + line) % 5_000:05}", "quantity": line + 1, "unit_cents": 1_299 + line}
            for line in range(3)
        ],
        "ship_to": f"{number % 997} Example Street, 12345 Sampletown",
    }


def compute(stage: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    """What a stage returns for an order."""
    lines: Sequence[Mapping[str, Any]] = payload["lines"]
    match stage:
        case "validate":
            return {"valid": all(line["quantity"] > 0 for line in lines), "lines": len(lines)}
        case "allocate":
            return {"reserved": {line["sku"]: line["quantity"] for line in lines}}
        case _:
            total = sum(line["quantity"] * line["unit_cents"] for line in lines)
            return {"total_cents": total, "currency": payload["currency"]}


async def handle(task: Task) -> dict[str, Any]:
    """Compute, and return it."""
    return compute(task.stage, task.payload)


async def handle_in_transaction(task: Task, connection: AsyncConnection) -> dict[str, Any]:
    """Compute, write a row, and return it."""
    result = compute(task.stage, task.payload)
    row = {"task_id": task.task_id, "stage": task.stage, "lines": len(task.payload["lines"])}
    await connection.execute(_RECORD, row)
    return result


for _before, _stage in zip((None, *STAGES), STAGES, strict=False):
    plain.stage(_stage, after=_before or ())(handle)
    prioritized.stage(_stage, after=_before or ())(handle)
    own.stage(_stage, after=_before or ())(handle_in_transaction)


@waiting.stage()
async def rest(task: Task) -> None:
    """Wait for a day."""
    raise Snooze(timedelta(days=1))


@limited.stage(rate=f"{RATE}/s", burst=BURST)
async def go(task: Task) -> None:
    """Do nothing, but not too often."""
