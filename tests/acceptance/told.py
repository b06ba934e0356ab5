"""The pipeline of the telemetry's tests: a retry, a fan-out, a service, and a stage that is a dead letter at first."""

import logging
import os
from pathlib import Path

from postroad import HttpStage, Pipeline, Reject, Retry, Task

log = logging.getLogger("authors.code")

told = Pipeline("told")


@told.stage()
async def check(task: Task) -> None:
    """Fails once."""
    log.info("checking, attempt %d", task.attempt)
    if task.attempt == 1:
        raise Retry("once", after=0.1)


@told.stage(after="check")
def left(task: Task) -> None:
    """In a thread."""
    log.info("left")


told.add("price", HttpStage("${PRICE_URL}"), after="check")


@told.stage(after=("left", "price"))
def settle(task: Task) -> None:
    """In a thread; a dead letter until somebody has paid."""
    if not Path(os.environ["PAID"]).exists():
        raise Reject("nobody has paid")
