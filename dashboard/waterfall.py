"""The journey of a task as bars: how long each attempt waited and ran, and how long it was until the next.

Made of the view ``task_journey`` alone, so it needs no tracing backend, and tells the same as SQL does.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

ACTIONS = {
    "StageRequeued": "requeued",
    "TaskRetried": "retried",
    "TaskCancelled": "cancelled",
    "DeadLetterDiscarded": "discarded",
    "StageDropped": "dropped",
}
"""The events by which people step in."""

ENDS = {"TaskCompleted": "completed", "TaskFailed": "failed"}

LEAST = 0.004
"""The part of the width that a bar has at least, or nobody would see it."""


class Step(Protocol):
    """A row of ``task_journey``."""

    event: str
    stage: str | None
    occurred_at: datetime
    outcome: str | None
    attempt: int | None
    worker: str | None
    ready_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    next_at: datetime | None
    reason: str | None
    error: str | None
    data: Any


@dataclass(frozen=True, slots=True)
class Bar:
    """From ``begin`` to ``end``. ``kind``: wait, run, retry (until it is due again), or handed (a service has it)."""

    kind: str
    begin: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.end - self.begin).total_seconds()


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the picture: an attempt, or something that happened at a moment.

    ``kind``: accepted, attempt, action, ended, or open: it waits or runs now.
    """

    kind: str
    outcome: str
    at: datetime
    stage: str | None = None
    attempt: int | None = None
    bars: Sequence[Bar] = ()
    worker: str | None = None
    note: str | None = None
    error: str | None = None
    log: Sequence[str] = ()

    def seconds(self, kind: str) -> float | None:
        """How long its bars of ``kind`` are together; ``None`` if it has none."""
        lengths = [bar.seconds for bar in self.bars if bar.kind == kind]
        return sum(lengths) if lengths else None


@dataclass(frozen=True, slots=True)
class Waterfall:
    """All lines, and the time that they span."""

    rows: Sequence[Row]
    begin: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        """How long that is."""
        return (self.end - self.begin).total_seconds()

    def place(self, bar: Bar) -> tuple[float, float]:
        """Where ``bar`` begins, and how long it is, as parts of the whole."""
        length = max(bar.seconds / self.seconds, LEAST)
        return min(self.point(bar.begin), 1 - length), length

    def point(self, at: datetime) -> float:
        """Where a moment is."""
        return min(max((at - self.begin).total_seconds() / self.seconds, 0.0), 1.0)


def waterfall(
    steps: Iterable[Step],
    after: Mapping[str, Sequence[str]],
    running: Mapping[str, tuple[int, datetime]],
    *,
    now: datetime,
    is_open: bool,
) -> Waterfall | None:
    """The picture of ``steps``, oldest first, of a pipeline with the stages ``after``; ``None`` if there are none.

    ``running``: the attempts that are being made now, by their stages, each with its number and its beginning.
    ``is_open``: what is ready by now waits.
    """
    way = _Way(after)
    for step in steps:
        way.take(step)
    if is_open:
        way.add_open(running, now)
    if not way.rows:
        return None
    bars = [bar for row in way.rows for bar in row.bars]
    begin = min([row.at for row in way.rows] + [bar.begin for bar in bars])
    # What is yet to come must not squeeze what has been.
    ends = [row.at for row in way.rows] + [bar.end if bar.kind != "retry" else min(bar.end, now) for bar in bars]
    return Waterfall(way.rows, begin, max(*ends, begin + timedelta(milliseconds=1)))


@dataclass(slots=True)
class _Stage:
    """What is known of a stage at some point of the way."""

    ready_at: datetime | None = None
    due_at: datetime | None = None
    handed_at: datetime | None = None
    outcome: str | None = None
    attempt: int = 0


@dataclass(slots=True)
class _Way:
    after: Mapping[str, Sequence[str]]
    rows: list[Row] = field(default_factory=list)
    stages: dict[str, _Stage] = field(default_factory=dict)

    def take(self, step: Step) -> None:
        """Go on by one step."""
        kind, data = step.event.partition(":")[0], step.data if isinstance(step.data, dict) else {}
        if step.outcome is not None and step.stage is not None:
            self._add_attempt(step, step.stage, step.outcome, data)
        elif kind == "TaskCreated":
            self.rows.append(Row("accepted", "accepted", step.occurred_at))
            self._make_ready(step.occurred_at)
        elif kind in ACTIONS:
            self.rows.append(Row("action", ACTIONS[kind], step.occurred_at, step.stage, note=_who(data)))
            for stage in data.get("stages", [step.stage]):
                self.stages[stage] = _Stage()
            self._make_ready(step.occurred_at)
        elif kind in ENDS:
            self.rows.append(Row("ended", ENDS[kind], step.occurred_at))

    def add_open(self, running: Mapping[str, tuple[int, datetime]], now: datetime) -> None:
        """What waits or runs now."""
        for name in self.after:
            known = self.stages.get(name, _Stage())
            ready_at = max(filter(None, (known.ready_at, known.due_at)), default=None)
            if name in running:
                attempt, since = running[name]
                since = min(since, now)
                waited = [Bar("wait", ready_at, since)] if ready_at and ready_at < since else []
                self.rows.append(Row("open", "running", since, name, attempt, [*waited, Bar("run", since, now)]))
            elif known.outcome == "waiting" and known.handed_at:
                bar = Bar("handed", known.handed_at, now)
                self.rows.append(Row("open", "with a service", known.handed_at, name, known.attempt, [bar]))
            elif ready_at and ready_at < now and known.outcome not in ("done", "dead"):
                bar = Bar("wait", ready_at, now)
                self.rows.append(Row("open", "waits", ready_at, name, known.attempt + 1, [bar]))

    def _add_attempt(self, step: Step, stage: str, outcome: str, data: Mapping[str, Any]) -> None:
        known = self.stages.setdefault(stage, _Stage())
        end = step.ended_at or step.occurred_at
        bars = []
        if step.started_at is not None:
            if known.handed_at is not None and known.handed_at < step.started_at:
                bars.append(Bar("handed", known.handed_at, step.started_at))
            elif step.ready_at is not None and step.ready_at < step.started_at:
                bars.append(Bar("wait", step.ready_at, step.started_at))
            bars.append(Bar("run", step.started_at, end))
        is_tried_again = outcome in ("failed", "snoozed") and step.next_at is not None
        if is_tried_again and step.next_at is not None:
            bars.append(Bar("retry", end, step.next_at))
        self.stages[stage] = _Stage(
            known.ready_at or end, step.next_at if is_tried_again else None,
            end if outcome == "waiting" else None, outcome, step.attempt or 0,
        )  # fmt: skip
        # The number of one that was snoozed is that of the one before: it does not count.
        number = None if outcome == "snoozed" else step.attempt
        self.rows.append(
            Row(
                "attempt", outcome, step.occurred_at, stage, number, bars, step.worker, step.reason, step.error,
                data.get("log") or (),
            )
        )  # fmt: skip
        if outcome == "done":
            self._make_ready(end)

    def _make_ready(self, at: datetime) -> None:
        """Those whose stages before are all done have waited since then."""
        for name, before in self.after.items():
            known = self.stages.setdefault(name, _Stage())
            if known.ready_at is None and all(self.stages.get(one, _Stage()).outcome == "done" for one in before):
                known.ready_at = at


def _who(data: Mapping[str, Any]) -> str:
    by = f"by {data['by']}" if data.get("by") else ""
    whom = f" for {data['on_behalf_of']}" if data.get("on_behalf_of") else ""
    why = f": {data['reason']}" if data.get("reason") else ""
    return by + whom + why
