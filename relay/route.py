"""Which stages wait for an event."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..core.event import EventType
from ..outbox.ticks import Appended


@dataclass(frozen=True, slots=True)
class Route:
    """A stage as Postgres knows it, and the stages that must be done before it."""

    pipeline: str
    stage: str
    after: tuple[str, ...]


class Routes:
    """The deployed graphs, arranged by the events that stages wait for.

    ``TaskCreated`` leads to the first stages, ``StageCompleted:X`` to the stages that come after X alone, and
    ``StageRequested:X`` to X. A stage after several others is asked for by the transaction that completes the last of
    them, which alone can know that it is the last.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self.stages: list[tuple[str, str]] = []
        self._waiting: dict[tuple[str, str, str | None], list[str]] = {}
        for route in routes:
            self.stages.append((route.pipeline, route.stage))
            self._wait(route.pipeline, EventType.STAGE_REQUESTED, route.stage, route.stage)
            if not route.after:
                self._wait(route.pipeline, EventType.TASK_CREATED, None, route.stage)
            elif len(route.after) == 1:
                self._wait(route.pipeline, EventType.STAGE_COMPLETED, route.after[0], route.stage)

    def stages_for(self, event: Appended) -> list[str]:
        """The names of the stages, in the event's pipeline, that wait for ``event``; often none."""
        return self._waiting.get((event.pipeline, event.type, event.stage), [])

    def _wait(self, pipeline: str, type: EventType, about: str | None, stage: str) -> None:
        self._waiting.setdefault((pipeline, str(type), about), []).append(stage)
