"""The ends of tasks that were submitted: waited for, and counted."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import click

from ..client import AsyncClient, Submitted, TaskView, UnansweredError
from ..core.task import Status

AT_ONCE = 50
"""Tasks that are waited for at once, over a connection each; the next has its turn when one of them has ended."""

SHOWN = 20
"""Tasks that did not complete of which stderr tells."""


class Ends:
    """What becomes of the tasks that were accepted, once they were all submitted."""

    def __init__(self) -> None:
        self._lines: dict[UUID, int] = {}
        self._counts: Counter[Status] = Counter()
        self._faults: dict[int, str] = {}
        self._view: TaskView | None = None
        self.is_waiting = False
        """True from when everything was submitted on."""

    def expect(self, submitted: Submitted) -> None:
        """A task was accepted. Several lines may have been one."""
        self._lines.setdefault(submitted.task_id, submitted.number)

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def left(self) -> int:
        """How many have not ended, as far as we have seen."""
        return len(self._lines) - self._counts.total()

    @property
    def code(self) -> int:
        """The exit code: 0 if all are completed, 5 if one ended otherwise, else 75."""
        if self._counts.total() > self._counts[Status.COMPLETED]:
            return 5
        return 75 if self.left else 0

    async def wait(self, client: AsyncClient, within: float | None, on_end: Callable[[], object]) -> None:
        """Wait for all, ``within`` so many seconds if that is given; then look once more at each that is left.

        Raises what the client raises.
        """
        self.is_waiting = True
        end = None if within is None else time.monotonic() + within
        lines = iter(self._lines.items())
        waiting = [asyncio.create_task(self._wait_for_each(client, lines, end, on_end)) for _ in range(AT_ONCE)]
        try:
            await asyncio.gather(*waiting)
        finally:
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _wait_for_each(
        self, client: AsyncClient, lines: Iterator[tuple[UUID, int]], end: float | None, on_end: Callable[[], object]
    ) -> None:
        for task_id, number in lines:
            left = None if end is None else max(0.0, end - time.monotonic())
            try:
                view = await client.wait(task_id, timeout=left)
            except TimeoutError:
                continue
            except UnansweredError:
                if end is None or time.monotonic() < end:
                    raise
                continue
            self._counts[view.status] += 1
            self._view = view
            if view.status is not Status.COMPLETED:
                self._faults[number] = _fault(view)
            on_end()

    def counts(self) -> dict[str, Any]:
        """How many ended how, and how many are still ``open``; of a single one, what it has come to."""
        ended = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
        counts: dict[str, Any] = {str(status): self._counts[status] for status in ended} | {"open": self.left}
        if len(self) == 1:
            (task_id,) = self._lines
            counts["task"] = _outcome(task_id, self._view)
        return counts

    def tell(self, url: str, run: str) -> None:
        """Say on stderr which did not complete, and how to go on with those that have not ended."""
        for number, fault in sorted(self._faults.items())[:SHOWN]:
            click.echo(f"line {number}: {fault}", err=True)
        if len(self._faults) > SHOWN:
            click.echo(f"… and {len(self._faults) - SHOWN:,} more", err=True)
        if not self.left:
            return
        if len(self) == 1:
            (task_id,) = self._lines
            how = f"postroad task show {task_id}, or {url}/v1/tasks/{task_id}"
            click.echo(f"task {task_id} was accepted, has not ended, and goes on: {how}", err=True)
        else:
            how = f"--run {run} waits on with the same file and doubles nothing"
            click.echo(f"{self.left:,} of {len(self):,} tasks have not ended, and go on: {how}", err=True)


def _fault(view: TaskView) -> str:
    dead = [f"{run.stage}: {run.error}" for run in view.stages if run.status == "dead"]
    return "; ".join([f"task {view.task_id} is {view.status}", *dead])


def _outcome(task_id: UUID, view: TaskView | None) -> dict[str, Any]:
    if view is None:
        return {"task_id": str(task_id)}
    errors = {run.stage: run.error for run in view.stages if run.status == "dead"}
    return {
        "task_id": str(task_id),
        "status": view.status,
        "stage_status": view.stage_status,
        "results": view.results,
        "errors": errors,
    }
