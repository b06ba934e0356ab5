"""Lists of tasks, by filters in the address, and the search that leads to one by any id."""

import asyncio
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.requests import Request
from starlette.responses import Response

from ..core.task import Status
from ..intake.cursor import cursor_of, place_of
from ..intake.listing import list_tasks
from ..intake.lookup import find_pipeline
from ..intake.members import TASKS, is_text, is_uuid
from ..intake.problems import malformed
from ..intake.requests import read_query
from ..intake.views import filter_of
from .house import House, go_to
from .reader import PATIENCE, Part
from .render import address, render
from .session import Viewer

PAGE = 50
"""Tasks on a page."""


class Tasks:
    """The page ``/ui/tasks``, and the search ``/ui/find``."""

    def __init__(self, house: House) -> None:
        self._house = house

    async def show(self, request: Request, viewer: Viewer) -> Response:
        """A page of tasks, the newest first."""
        # The fields of a form that were left empty.
        given = [(name, value) for name, value in request.query_params.multi_items() if value.strip()]
        if len(given) != len(request.query_params.multi_items()):
            return go_to(address("/ui/tasks", **_together(given)))
        asked = read_query(request, TASKS)
        cursor = asked.pop("cursor", None)
        limit = min(int(asked.pop("limit", PAGE)), 200)
        try:
            after = None if cursor is None else place_of(cursor, asked)
        except ValueError as error:
            raise malformed(str(error)) from error
        wanted = filter_of(asked, viewer.caller.pipelines)
        tasks, names = await asyncio.gather(
            self._house.reader.part(
                lambda connection: list_tasks(connection, wanted, after=after, limit=limit, patience=PATIENCE)
            ),
            self._house.sight.names(viewer.caller),
        )
        rows, place = tasks.value or ([], None)
        following = place and address("/ui/tasks", **asked, cursor=cursor_of(place, asked))
        return render(
            request, viewer, "tasks.html",
            asked=asked, tasks=Part(rows, tasks.note), following=following, is_first=cursor is None,
            first=address("/ui/tasks", **asked), names=names, statuses=[str(status) for status in Status],
        )  # fmt: skip

    async def find(self, request: Request, viewer: Viewer) -> Response:
        """Lead to the task of an id, or to the list of those that a part of an id, a key or a trace finds."""
        q = request.query_params.get("q", "").strip()
        if not is_text(q):
            return go_to("/ui/tasks")
        if is_uuid(q):
            task_id = UUID(q)

            async def find(connection: AsyncConnection) -> Any:
                return await find_pipeline(connection, task_id)

            pipeline = await self._house.reader.read(find)
            if pipeline is not None and viewer.caller.may_use(pipeline):
                return go_to(f"/ui/tasks/{task_id}")
        wanted = filter_of({"q": q}, viewer.caller.pipelines)
        found = await self._house.reader.part(
            lambda connection: list_tasks(connection, wanted, limit=2, patience=PATIENCE)
        )
        rows = found.value[0] if found.value else []
        if len(rows) == 1:
            return go_to(f"/ui/tasks/{rows[0]['task_id']}")
        return go_to(address("/ui/tasks", q=q))


def _together(given: list[tuple[str, str]]) -> dict[str, Any]:
    together: dict[str, list[str]] = {}
    for name, value in given:
        together.setdefault(name, []).append(value)
    return together
