"""What pages show of the whole deployment, read once however many look: depths, rates, processes, the audit."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import Statements, pipeline_table
from ..intake.app import Foundation
from ..intake.keyring import Caller
from ..intake.pipelines import list_pipelines
from ..outbox.audit import INVARIANTS, Finding
from .reader import PATIENCE, Part, Reader, Shared, part

MOST = 10_000
"""Where counting ends: to count millions would take longer than the answer is good for."""

EVENTS = 10_000
"""So many of the newest events are what rates and percentiles are made of."""

SAMPLE = 300
"""Tasks that the audit at a glance looks at: the newest, and as many of the oldest open ones of each pipeline."""

DEPTH = 2000
"""So many of the oldest open tasks of a pipeline are looked at, to say how much is at each stage."""

FRESH, AUDITED = 2.5, 30.0
"""Seconds for which what was read is shown to others too; the audit."""

SILENT = 15.0
"""Seconds after which a process that has not written its row is taken for dead."""


@dataclass(slots=True)
class Activity:
    """What happened at a stage within the time that was looked at, or, without a stage, to the tasks of a pipeline."""

    accepted: int = 0
    done: int = 0
    failed: int = 0
    dead: int = 0
    completed: int = 0
    lately: int = 0
    wait_p50: float | None = None
    wait_p95: float | None = None
    run_p50: float | None = None
    run_p95: float | None = None
    good: dict[int, int] = field(default_factory=dict)
    """How many attempts were done, by how many minutes ago."""
    bad: dict[int, int] = field(default_factory=dict)

    @property
    def attempts(self) -> int:
        """All of them."""
        return self.done + self.failed + self.dead


@dataclass(frozen=True, slots=True)
class Recent:
    """The activity by pipeline and stage (``None``: of its tasks), since when, and of how many seconds that is."""

    of: Mapping[tuple[str, str | None], Activity]
    since: datetime
    seconds: float

    def at(self, pipeline: str, stage: str | None = None) -> Activity:
        """That of a stage; nothing, if nothing happened."""
        return self.of.get((pipeline, stage), Activity())

    def rate(self, count: int) -> float:
        """So many of the last minute, in a second."""
        return count / min(max(self.seconds, 1.0), 60.0)


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the deployment, as its row tells; of ``running`` what may be seen."""

    process: str
    role: str
    host: str
    pid: int
    version: str
    stages: Sequence[str]
    is_leading: bool
    running: Sequence[Mapping[str, Any]]
    started_at: datetime
    seen_at: datetime
    stopped_at: datetime | None
    silent: float

    @property
    def is_alive(self) -> bool:
        """True if it has been seen lately, and has not said that it stops."""
        return self.stopped_at is None and self.silent < SILENT


@dataclass(frozen=True, slots=True)
class Outbox:
    """What no relay has published: how many events (``None``: not known), and how old the oldest is."""

    events: Mapping[str, Any]
    age: float | None
    tick_at: datetime | None


@dataclass(frozen=True, slots=True)
class Audit:
    """What a look at some tasks said."""

    findings: Sequence[Finding]
    looked_at: int

    @property
    def violations(self) -> int:
        """All of them."""
        return sum(finding.violations for finding in self.findings)


class Sight:
    """Looks. ``foundation`` is what the door shares with the dashboard."""

    def __init__(self, foundation: Foundation, reader: Reader) -> None:
        self._schema = foundation.settings.schema
        self._sql = Statements(__package__ or "", self._schema)
        self._pressure = foundation.pressure
        self._pipelines = Shared(lambda: reader.read(self._read_pipelines), every=FRESH)
        self._names = Shared(lambda: reader.read(self._read_names), every=FRESH)
        self._recent = Shared(lambda: reader.read(self._read_recent), every=FRESH)
        self._processes = Shared(lambda: reader.read(self._read_processes), every=FRESH)
        self._outbox = Shared(lambda: reader.read(self._read_outbox), every=FRESH)
        self._audit = Shared(lambda: reader.read(self._read_audit), every=AUDITED)

    def forget(self) -> None:
        """Somebody has changed something: what is at the stages is read anew."""
        self._pipelines.forget()

    async def close(self) -> None:
        """End what is being read."""
        for shared in (self._pipelines, self._names, self._recent, self._processes, self._outbox, self._audit):
            await shared.close()

    async def pipelines(self, caller: Caller) -> Part[list[dict[str, Any]]]:
        """The graphs that ``caller`` may see, with what is at each stage."""
        found = await part(self._pipelines.get())
        if found.value is None:
            return Part(None, found.note)
        return Part([one for one in found.value[0] if caller.may_use(one["pipeline"])])

    async def names(self, caller: Caller) -> list[str]:
        """The names of those that ``caller`` may see."""
        found = await part(self._names.get())
        return [name for name in found.value[0] if caller.may_use(name)] if found.value else []

    async def recent(self) -> Part[Recent]:
        """What has happened lately."""
        found = await part(self._recent.get())
        return Part(found.value and found.value[0], found.note)

    async def processes(self, caller: Caller) -> Part[list[Process]]:
        """The processes that do something which ``caller`` may see."""
        found = await part(self._processes.get())
        if found.value is None:
            return Part(None, found.note)
        return Part([shown for row in found.value[0] if (shown := _seen_by(caller, row))])

    async def outbox(self) -> Part[Outbox]:
        """What waits for the relay."""
        found = await part(self._outbox.get())
        return Part(found.value and found.value[0], found.note)

    async def audit(self) -> Part[tuple[Audit, float]]:
        """What the invariants say of some tasks, and how many seconds ago."""
        return await part(self._audit.get())

    async def _read_pipelines(self, connection: AsyncConnection) -> list[dict[str, Any]]:
        return await list_pipelines(connection, self._schema, most=DEPTH, patience=PATIENCE)

    async def _read_names(self, connection: AsyncConnection) -> list[str]:
        query = select(pipeline_table.c.pipeline).order_by(pipeline_table.c.pipeline)
        return list(await connection.scalars(query))

    async def _read_recent(self, connection: AsyncConnection) -> Recent:
        rows = (await connection.exec_driver_sql(self._sql["recent"], {"most": EVENTS})).all()
        of: dict[tuple[str, str | None], Activity] = defaultdict(Activity)
        counts = ("accepted", "done", "failed", "dead", "completed", "lately")
        for row in rows:
            activity = of[row.pipeline, row.stage]
            if row.minutes_ago is None:
                for name in (*counts, "wait_p50", "wait_p95", "run_p50", "run_p95"):
                    setattr(activity, name, getattr(row, name))
            else:
                activity.good[row.minutes_ago] = row.done
                activity.bad[row.minutes_ago] = row.failed + row.dead
        now = (await connection.exec_driver_sql("select clock_timestamp()")).scalar_one()
        since = rows[0].since if rows else now
        return Recent(of, since, (now - since).total_seconds())

    async def _read_processes(self, connection: AsyncConnection) -> list[Process]:
        rows = await connection.exec_driver_sql(self._sql["processes"])
        return [Process(**row._mapping) for row in rows]

    async def _read_outbox(self, connection: AsyncConnection) -> Outbox:
        asked = {"tick": self._pressure.published, "most": MOST}
        row = (await connection.exec_driver_sql(self._sql["unpublished"], asked)).one_or_none()
        events = row.events if row else 0
        counted = {"count": min(events, MOST), "capped": events > MOST}
        return Outbox(counted, self._pressure.age if events else None, row.tick_at if row else None)

    async def _read_audit(self, connection: AsyncConnection) -> Audit:
        row = (await connection.exec_driver_sql(self._sql["glance"], {"most": SAMPLE})).one()
        counts = dict(row._mapping)
        looked_at = counts.pop("looked_at")
        return Audit([Finding(name, *INVARIANTS[name], count) for name, count in counts.items()], looked_at)


def _seen_by(caller: Caller, process: Process) -> Process | None:
    """``process`` with what ``caller`` may see of it; ``None`` if that is nothing."""
    if caller.pipelines is None or process.role != "stage":
        return process
    stages = [name for name in process.stages if caller.may_use(name.partition(".")[0])]
    if not stages:
        return None
    # A row names the stage of an attempt without its pipeline.
    hidden = {name.partition(".")[2] for name in process.stages if name not in stages}
    running = [one for one in process.running if one["stage"] not in hidden]
    return replace(process, stages=stages, running=running)
