"""The page of one task: why it is where it is, its journey as a picture, what it carries, and what can be done."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.requests import Request
from starlette.responses import Response

from ..intake.cancel import cancel
from ..intake.members import LETTER_CURSOR
from ..intake.operations import check_task, who_and_why
from ..intake.problems import Problem, no_task
from ..intake.requests import path_id, read_query
from ..intake.retry import retry_dead, retry_from
from ..intake.transaction import transaction
from ..outbox.explain import Explanation, explain
from .house import House, go_to
from .render import render
from .session import Viewer, read_form
from .waterfall import Waterfall, waterfall

LONGEST = 100_000
"""Characters of a payload or a result that a page shows."""

EVENTS = 300
"""Events of a journey that a page shows; the picture is made of these."""


@dataclass(frozen=True, slots=True)
class Journey:
    """The latest events of a task, and where the earlier ones are."""

    events: Sequence[Any]
    earlier: int | None


class TaskPage:
    """The pages below ``/ui/tasks/{task_id}``."""

    def __init__(self, house: House) -> None:
        self._house = house

    async def show(self, request: Request, viewer: Viewer) -> Response:
        """The task."""
        asked = read_query(request, {"before": LETTER_CURSOR})
        task_id = path_id(request)
        task = await self._find(task_id, viewer)
        before = int(asked["before"]) if "before" in asked else None
        why, runs, journey, processes = await asyncio.gather(
            self._house.reader.part(lambda connection: self._explain(connection, task_id)),
            self._house.reader.part(lambda connection: self._runs(connection, task_id)),
            self._house.reader.part(lambda connection: self._journey(connection, task_id, before)),
            self._house.sight.processes(viewer.caller),
        )
        running = {
            run["stage"]: (run["attempt"], datetime.fromisoformat(run["since"]))
            for process in processes.value or []
            for run in process.running
            if process.is_alive and run["task_id"] == str(task_id)
        }
        picture = None
        if journey.value and before is None:
            picture = _picture(task, journey.value, running)
        return render(
            request, viewer, "task.html",
            task=task, runs=runs, journey=journey, picture=picture, running=running, before=before, why=why,
            base=str(request.base_url).rstrip("/"), schema=self._house.schema,
        )  # fmt: skip

    async def ask(self, request: Request, viewer: Viewer) -> Response:
        """The page that has an action confirmed."""
        task_id = path_id(request)
        task = await self._find(task_id, viewer)
        runs = await self._house.reader.part(lambda connection: self._runs(connection, task_id))
        return render(request, viewer, "act.html", task=task, runs=runs, action=request.path_params["action"])

    async def act(self, request: Request, viewer: Viewer) -> Response:
        """Cancel it, or let stages run again."""
        task_id, form = path_id(request), await read_form(request, viewer)
        who = who_and_why(viewer.caller, form, unnamed="dashboard")
        async with transaction(self._house.foundation.engine) as connection:
            await check_task(connection, viewer.caller, task_id)
            if request.path_params["action"] == "cancel":
                if not await cancel(connection, [task_id], self._house.schema, **who):
                    raise Problem(HTTPStatus.CONFLICT, "refused", f"task {task_id} has come to its end already")
            elif stage := form.get("from"):
                await retry_from(connection, task_id, stage, self._house.schema, **who)
            else:
                await retry_dead(connection, task_id, self._house.schema, **who)
        return go_to(f"/ui/tasks/{task_id}")

    async def _find(self, task_id: UUID, viewer: Viewer) -> Mapping[str, Any]:
        async def find(connection: AsyncConnection) -> Any:
            rows = await connection.exec_driver_sql(self._house.sql["task"], {"task_id": task_id, "most": LONGEST})
            return rows.one_or_none()

        row = await self._house.reader.read(find)
        if row is None or not viewer.caller.may_use(row.pipeline):
            raise no_task(task_id)
        return dict(row._mapping)

    async def _explain(self, connection: AsyncConnection, task_id: UUID) -> Explanation:
        return await explain(connection, task_id, self._house.schema, self._house.foundation.locator)

    async def _runs(self, connection: AsyncConnection, task_id: UUID) -> list[dict[str, Any]]:
        rows = await connection.exec_driver_sql(self._house.sql["runs"], {"task_id": task_id, "most": LONGEST})
        return [dict(row._mapping) for row in rows]

    async def _journey(self, connection: AsyncConnection, task_id: UUID, before: int | None) -> Journey:
        asked = {"task_id": task_id, "most": EVENTS + 1, "before": before}
        events = (await connection.exec_driver_sql(self._house.sql["events"], asked)).all()
        return Journey(events[-EVENTS:], events[-EVENTS].position if len(events) > EVENTS else None)


def _picture(
    task: Mapping[str, Any], journey: Journey, running: Mapping[str, tuple[int, datetime]]
) -> Waterfall | None:
    is_open = task["status"] in ("pending", "in_progress")
    after = dict(task["graph"] or [])
    return waterfall(journey.events, after, running, now=task["looked_at"], is_open=is_open)
