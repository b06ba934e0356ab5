"""Which stages wait for an event, and in which of their streams it is put."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..core.event import EventType
from ..core.priority import Priority
from ..outbox.ticks import Appended


@dataclass(frozen=True, slots=True)
class Route:
    """A stage as Postgres knows it, and the stages that must be done before it; if ``priorities``, it has lanes."""

    pipeline: str
    stage: str
    after: tuple[str, ...]
    priorities: bool = False

    @property
    def lanes(self) -> "list[Lane]":
        """The lanes of the stage."""
        priorities: list[Priority | None] = [*Priority] if self.priorities else [None]
        return [Lane(self.pipeline, self.stage, priority) for priority in priorities]


class Lane(NamedTuple):
    """One stream of a stage: for its tasks of one priority, or for all of them."""

    pipeline: str
    stage: str
    priority: Priority | None = None

    @property
    def name(self) -> str:
        """What the keys end with."""
        return "" if self.priority is None else self.priority.lane


class Routes:
    """The deployed graphs, arranged by the events that stages wait for.

    ``TaskCreated`` leads to the first stages, ``StageCompleted:X`` to the stages that come after X alone, and
    ``StageRequested:X`` to X. A stage after several others is asked for by the transaction that completes the last of
    them, which alone can know that it is the last.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self.lanes: list[Lane] = []
        self._waiting: dict[tuple[str, str, str | None, int], list[Lane]] = {}
        for route in routes:
            self.lanes += route.lanes
            self._wait(route, EventType.STAGE_REQUESTED, route.stage)
            if not route.after:
                self._wait(route, EventType.TASK_CREATED, None)
            elif len(route.after) == 1:
                self._wait(route, EventType.STAGE_COMPLETED, route.after[0])

    def lanes_for(self, event: Appended) -> list[Lane]:
        """The lanes, of stages in the event's pipeline that wait for ``event``, for its priority; often none."""
        return self._waiting.get((event.pipeline, event.type, event.stage, event.priority), [])

    def _wait(self, route: Route, type: EventType, about: str | None) -> None:
        for lane in route.lanes:
            for priority in Priority if lane.priority is None else [lane.priority]:
                self._waiting.setdefault((route.pipeline, str(type), about, priority), []).append(lane)
