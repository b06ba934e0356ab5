"""The overview: each pipeline as a picture, with how much is where, how old it is, and how fast it goes."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from .failures import read_groups
from .graph import Drawing, Node, draw
from .house import House
from .render import count, number, render, span
from .session import Viewer
from .sight import Outbox, Process, Recent

AMBER, RED = 30.0, 300.0
"""Seconds that the oldest may have been ready before a node is marked."""

LAST = 10
"""Groups of failures below the pictures."""


@dataclass(frozen=True, slots=True)
class Box:
    """A node of a picture with what stands in it. ``state``: calm, amber, red, paused or idle."""

    node: Node
    name: str
    href: str
    state: str
    figure: str
    unit: str
    lines: Sequence[str]
    flag: str | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """A pipeline as it is drawn."""

    pipeline: Mapping[str, Any]
    drawing: Drawing
    boxes: Sequence[Box]


class Overview:
    """The page ``/ui/``."""

    def __init__(self, house: House) -> None:
        self._house = house

    async def show(self, request: Request, viewer: Viewer) -> Response:
        """The page."""
        house, caller = self._house, viewer.caller
        pipelines, recent, processes, outbox, audit, groups = await asyncio.gather(
            house.sight.pipelines(caller),
            house.sight.recent(),
            house.sight.processes(caller),
            house.sight.outbox(),
            house.sight.audit(),
            house.reader.part(lambda connection: read_groups(connection, house, caller, limit=LAST)),
        )
        pictures = [
            _picture(pipeline, recent.value, processes.value or [], outbox.value) for pipeline in pipelines.value or []
        ]
        return render(
            request, viewer, "overview.html",
            pictures=pictures, pipelines=pipelines, recent=recent, processes=processes, outbox=outbox, audit=audit,
            groups=groups, last=LAST,
        )  # fmt: skip


def age_state(seconds: float | None) -> str:
    """How an age is marked."""
    if seconds is None or seconds < AMBER:
        return "calm"
    return "amber" if seconds < RED else "red"


def workers_of(processes: Sequence[Process], pipeline: str, stage: str) -> tuple[int, int]:
    """How many processes that live run a stage, and how many attempts of it they make."""
    alive = [one for one in processes if one.is_alive and f"{pipeline}.{stage}" in one.stages]
    return len(alive), sum(run["stage"] == stage for one in alive for run in one.running)


def _picture(
    pipeline: Mapping[str, Any], recent: Recent | None, processes: Sequence[Process], outbox: Outbox | None
) -> Picture:
    stages = {stage["stage"]: stage for stage in pipeline["stages"]}
    drawing = draw({name: stage["after"] for name, stage in stages.items()})
    name = pipeline["pipeline"]
    boxes = []
    for node in drawing.nodes:
        match node.kind:
            case "stage":
                boxes.append(_stage_box(node, name, stages[node.stage], recent, processes))
            case "intake":
                boxes.append(_intake_box(node, name, recent, processes))
            case "outbox":
                boxes.append(_outbox_box(node, outbox))
            case "relay":
                boxes.append(_relay_box(node, processes, outbox))
            case _:
                boxes.append(_end_box(node, name, pipeline, recent))
    return Picture(pipeline, drawing, boxes)


def _rate(recent: Recent | None, counted: int) -> str:
    return "" if recent is None else f"{number(recent.rate(counted))}/s"


def _stage_box(
    node: Node, pipeline: str, stage: Mapping[str, Any], recent: Recent | None, processes: Sequence[Process]
) -> Box:
    workers, running = workers_of(processes, pipeline, node.stage)
    age = stage["oldest_ready_seconds"]
    state, flag = age_state(age), None
    if stage["paused"]:
        state, flag = "paused", "paused"
    elif stage["resting_until"]:
        state, flag = "amber", "resting"
    elif not workers and stage["ready"]["count"]:
        state, flag = "red", "no worker"
    retrying = f"{count(stage['retrying'])} retry" if stage["retrying"]["count"] else ""
    lately = recent.at(pipeline, node.stage).lately if recent else 0
    runs = f"{running} run" if running else ""
    lines = [
        " · ".join(filter(None, (f"oldest {span(age)}" if age is not None else "nothing waits", retrying))),
        " · ".join(filter(None, (_rate(recent, lately), f"{workers} worker{'' if workers == 1 else 's'}", runs))),
    ]
    href = f"/ui/stages/{pipeline}/{node.stage}"
    return Box(node, node.stage, href, state, count(stage["ready"]), "ready", lines, flag)


def _intake_box(node: Node, pipeline: str, recent: Recent | None, processes: Sequence[Process]) -> Box:
    alive = sum(one.is_alive for one in processes if one.role == "intake")
    accepted = recent.at(pipeline).accepted if recent else 0
    seconds = recent.seconds if recent else 0.0
    figure = _rate(recent, recent.at(pipeline).lately) if recent else "–"
    lines = [f"{number(accepted)} in {span(seconds)}", f"{alive} process{'' if alive == 1 else 'es'}"]
    return Box(node, "intake", f"/ui/tasks?pipeline={pipeline}", "calm", figure, "", lines)


def _outbox_box(node: Node, outbox: Outbox | None) -> Box:
    if outbox is None:
        return Box(node, "outbox", "/ui/workers", "idle", "–", "", ["not known"])
    lines = [f"oldest {span(outbox.age)}" if outbox.age is not None else "all published"]
    return Box(node, "outbox", "/ui/workers", age_state(outbox.age), count(outbox.events), "events", lines)


def _relay_box(node: Node, processes: Sequence[Process], outbox: Outbox | None) -> Box:
    relays = [one for one in processes if one.role == "relay" and one.is_alive]
    leading = [one for one in relays if one.is_leading]
    waiting = len(relays) - len(leading)
    lines = [f"pid {leading[0].pid}", f"{waiting} wait" if waiting else ""] if leading else ["nobody publishes"]
    state = "calm" if leading else "red"
    return Box(node, "relay", "/ui/workers", state, "works" if leading else "down", "", lines)


def _end_box(node: Node, pipeline: str, told: Mapping[str, Any], recent: Recent | None) -> Box:
    if node.kind == "completed":
        completed = recent.at(pipeline).completed if recent else 0
        since = f"in {span(recent.seconds)}" if recent else ""
        href = f"/ui/tasks?pipeline={pipeline}&status=completed"
        return Box(node, "completed", href, "calm", number(completed), since, [])
    dead = [stage["dead"] for stage in told["stages"]]
    total = {"count": sum(one["count"] for one in dead), "capped": any(one["capped"] for one in dead)}
    state = "red" if total["count"] else "calm"
    return Box(node, "dead letters", f"/ui/failures?pipeline={pipeline}", state, count(total), "", [])
