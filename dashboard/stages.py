"""The stages: their limits and who changed them, how long attempts wait and run, and whether anything fails."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.requests import Request
from starlette.responses import Response

from ..core.database import stage_table
from ..core.errors import DeclarationError
from ..core.rate import MOST, OFF, Rate
from ..intake.limits import set_limits
from ..intake.operations import who_and_why
from ..intake.pause import set_paused
from ..intake.problems import Fault, Problem, invalid
from ..intake.transaction import transaction
from .failures import read_groups
from .house import House, go_to
from .overview import age_state, workers_of
from .reader import Part
from .render import render
from .session import Viewer, read_form
from .sight import Activity, Process, Recent
from .sparkline import Sparkline, sparkline

CHANGES = 10
"""Changes by people that the page of a stage shows."""


@dataclass(frozen=True, slots=True)
class Row:
    """A stage in the table."""

    pipeline: str
    stage: Mapping[str, Any]
    workers: int
    running: int
    activity: Activity
    rate: float | None
    sparkline: Sparkline | None
    state: str


class Stages:
    """The pages below ``/ui/stages``."""

    def __init__(self, house: House) -> None:
        self._house = house

    async def show(self, request: Request, viewer: Viewer) -> Response:
        """All of them."""
        pipelines, recent, processes = await asyncio.gather(
            self._house.sight.pipelines(viewer.caller),
            self._house.sight.recent(),
            self._house.sight.processes(viewer.caller),
        )
        tables = [
            (pipeline, [_row(pipeline, stage, recent.value, processes.value or []) for stage in pipeline["stages"]])
            for pipeline in pipelines.value or []
        ]
        return render(
            request, viewer, "stages.html", tables=tables, pipelines=pipelines, recent=recent, processes=processes
        )

    async def show_one(self, request: Request, viewer: Viewer) -> Response:
        """One, with what may be changed of it."""
        name, stage_name = request.path_params["pipeline"], request.path_params["stage"]
        pipelines, recent, processes, groups, set_by, operations = await asyncio.gather(
            self._house.sight.pipelines(viewer.caller),
            self._house.sight.recent(),
            self._house.sight.processes(viewer.caller),
            self._house.reader.part(
                lambda connection: read_groups(
                    connection, self._house, viewer.caller, limit=10, pipeline=name, stage=stage_name
                )
            ),
            self._house.reader.part(lambda connection: _read_set(connection, name, stage_name)),
            self._house.reader.part(lambda connection: self._operations(connection, name, stage_name)),
        )
        found = [
            (pipeline, stage)
            for pipeline in pipelines.value or []
            for stage in pipeline["stages"]
            if (pipeline["pipeline"], stage["stage"]) == (name, stage_name)
        ]
        if not found and pipelines.value is not None:
            raise Problem(HTTPStatus.NOT_FOUND, "not-found", f"there is no stage {name}.{stage_name}")
        row = _row(*found[0], recent.value, processes.value or []) if found else None
        workers = [
            (process, [run for run in process.running if run["stage"] == stage_name])
            for process in processes.value or []
            if f"{name}.{stage_name}" in process.stages
        ]
        return render(
            request, viewer, "stage.html",
            name=name, stage_name=stage_name, row=row, pipelines=pipelines, recent=recent, processes=processes,
            workers=workers, groups=groups, set_by=set_by,
            operations=operations if viewer.caller.may_use(name) else Part([]),
        )  # fmt: skip

    async def _operations(self, connection: AsyncConnection, pipeline: str, stage: str) -> list[dict[str, Any]]:
        asked = {"pipeline": pipeline, "target": f"{pipeline}.{stage}", "most": CHANGES}
        rows = await connection.exec_driver_sql(self._house.sql["operations"], asked)
        return [dict(row._mapping) for row in rows]

    async def change(self, request: Request, viewer: Viewer) -> Response:
        """Pause or resume it, or set its limits."""
        pipeline, stage = request.path_params["pipeline"], request.path_params["stage"]
        form = await read_form(request, viewer)
        if not viewer.caller.may_use(pipeline):
            raise Problem(HTTPStatus.NOT_FOUND, "not-found", f"there is no stage {pipeline}.{stage}")
        who = who_and_why(viewer.caller, form, unnamed="dashboard")
        async with transaction(self._house.foundation.engine) as connection:
            match request.path_params["action"]:
                case "limits":
                    await set_limits(connection, pipeline, stage, _limits(form), **who)
                case action:
                    is_paused = action == "pause"
                    await set_paused(connection, pipeline, stage, self._house.schema, paused=is_paused, **who)
        return go_to(f"/ui/stages/{pipeline}/{stage}")


def _row(pipeline: Mapping[str, Any], stage: Mapping[str, Any], recent: Recent | None, processes: list[Process]) -> Row:
    name = pipeline["pipeline"]
    workers, running = workers_of(processes, name, stage["stage"])
    activity = recent.at(name, stage["stage"]) if recent else Activity()
    line = sparkline(activity.good, activity.bad, known=recent.seconds / 60) if recent else None
    state = "paused" if stage["paused"] else age_state(stage["oldest_ready_seconds"])
    rate = recent.rate(activity.lately) if recent else None
    return Row(name, stage, workers, running, activity, rate, line, state)


async def _read_set(connection: AsyncConnection, pipeline: str, stage: str) -> Mapping[str, Any] | None:
    """The limits that people have set, and who switched the stage last."""
    column = stage_table.c
    query = select(column.rate, column.burst, column.max_running, column.switched_by, column.switched_at)
    row = (await connection.execute(query.where(column.pipeline == pipeline, column.stage == stage))).one_or_none()
    return dict(row._mapping) if row else {}


def _limits(form: Mapping[str, str]) -> dict[str, Any]:
    """What a form says of the limits; what it leaves empty is as the code says. Raises a ``Problem``."""
    limits: dict[str, Any] = {"rate": form.get("rate"), "burst": None, "max_running": None}
    for name in ("burst", "max_running"):
        if (text := form.get(name)) is not None:
            if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MOST):
                raise invalid(Fault(f"{name}: a whole number from 1 to {MOST:,.0f}, not {text!r:.40}", f"/{name}"))
            limits[name] = int(text[:9])
    if limits["burst"] is not None and limits["rate"] in (None, OFF):
        raise invalid(Fault("a burst belongs to a rate: give both", "/burst"))
    if limits["rate"] not in (None, OFF):
        try:
            Rate.parse(limits["rate"], limits["burst"])
        except DeclarationError as error:
            raise invalid(Fault(str(error), "/rate")) from None
    return limits
