"""Whether memory stays flat: what intake, relay and workers hold along a long run of the standard work."""

import sys
import time
from collections.abc import Mapping

from tests.acceptance.deployment import Deployment, wait_until

from .bed import bed, megabytes, table
from .work import RESULT_TABLE, order

BACKLOG = 5_000
"""Tasks that are open at most: what is held for them must not look like a leak."""

CHUNK = 1_000


def run(*, tasks: int, every: int) -> int:
    """Measure and print a line each time ``every`` tasks have finished."""
    with bed() as servers:
        deployment = servers.deployment("bench.work")
        deployment.execute(RESULT_TABLE)
        try:
            rows = _travel(deployment, tasks, every)
        finally:
            deployment.close()
    print(table(rows))
    return 0


def _travel(deployment: Deployment, tasks: int, every: int) -> list[Mapping[str, str]]:
    assert deployment.run("deploy").code == 0
    deployment.start("plain.validate", "plain.allocate", "plain.finalize")
    rows: list[Mapping[str, str]] = []
    submitted, began = 0, time.monotonic()

    def has_room() -> bool:
        return submitted - deployment.finished() <= BACKLOG - CHUNK

    while submitted < tasks:
        wait_until(has_room, "tasks go on", seconds=600, poll=0.2)
        count = min(CHUNK, tasks - submitted)
        deployment.submit("plain", *map(order, range(submitted, submitted + count)))
        submitted += count
        if deployment.finished() >= every * (len(rows) + 1):
            rows.append(_row(deployment, began))
    deployment.wait_until_finished(tasks, seconds=600)
    rows.append(_row(deployment, began))
    deployment.audit()
    return rows


def _row(deployment: Deployment, began: float) -> Mapping[str, str]:
    row = {"finished": f"{deployment.finished():,}", "seconds": f"{time.monotonic() - began:,.0f}"}
    row |= {name: f"{megabytes(process):.1f} MB" for name, process in deployment.processes.items()}
    print("  ".join(f"{name} {value}" for name, value in row.items()), file=sys.stderr, flush=True)
    return row
