"""A road with traffic on it: a relay and workers, as asyncio tasks of the test's process."""

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple
from uuid import UUID

from redis.asyncio import Redis

from postroad import Pipeline, Settings
from postroad.core import broker
from postroad.core.broker import RETRY_CONSUMER, Keys, group_name
from postroad.core.jsontext import encode
from postroad.core.priority import Priority
from postroad.core.task import new_task_id
from postroad.core.telemetry import continued
from postroad.intake.submit import Submitter
from postroad.outbox.submit import Accepted, Submission
from postroad.stages.worker import Worker
from postroad.testing.traffic import Traffic, until
from tests.integration.road import Road, open_road


class StageRun(NamedTuple):
    """What Postgres knows of a (task, stage)."""

    status: str
    attempts: int
    result: Any
    error: str | None
    has_date: bool
    worker: str


class Line(Traffic):
    """``pipeline`` in traffic, on ``road``."""

    def __init__(self, road: Road, pipeline: Pipeline) -> None:
        super().__init__(road.settings)
        self.road = road
        self.pipeline = pipeline
        self.client: Redis = broker.command_client(self.settings)
        self.keys = Keys(self.settings.prefix)

    # Traffic

    def work(self, *stages: str, **settings: Any) -> Worker:
        """Start a worker for ``stages``, by default all, with ``settings`` of its own."""
        graph = self.pipeline.graph()
        return self.start([graph[name] for name in stages or graph], dataclasses.replace(self.settings, **settings))

    async def submit(self, *payloads: Any, priority: Priority = Priority.NORMAL) -> list[UUID]:
        """Accept a task of ``priority`` for each payload."""
        submitter = Submitter(self.road.engine, self.settings.schema)
        name, trace = self.pipeline.name, continued(None)
        answers = await submitter.submit_many(
            [Submission(new_task_id(), name, encode(payload), "{}", trace, priority=priority) for payload in payloads]
        )
        assert all(isinstance(answer, Accepted) for answer in answers)
        return [answer.task_id for answer in answers if isinstance(answer, Accepted)]

    async def close(self) -> None:
        """End the traffic, and look no more."""
        await self.client.aclose()
        await super().close()

    # What can be seen of it

    async def is_finished(self) -> bool:
        """True if every task has completed or failed."""
        return not await self.road.ask("select from postroad.task where status in ('pending', 'in_progress') limit 1")

    async def are_finished(self, *, seconds: float = 60) -> dict[str, int]:
        """Wait until every task has completed or failed; how many are in each status."""
        await until(self.is_finished, seconds=seconds)
        rows = await self.road.ask("select status, count(*) from postroad.task group by 1")
        return {str(status): int(count) for status, count in rows}

    async def events(self, task_id: UUID, *types: str) -> list[str]:
        """The task's journey, of ``types`` alone if given."""
        return [one for one in await self.road.events(task_id) if not types or one.partition(":")[0] in types]

    async def run_of(self, task_id: UUID, stage: str) -> StageRun | None:
        """A stage run, if there is one."""
        rows = await self.road.ask(
            "select status, attempts, result, error, next_retry_at is not null, worker"
            " from postroad.stage_run where task_id = :id and stage = :stage",
            id=task_id,
            stage=stage,
        )
        return StageRun(*rows[0]) if rows else None

    async def letter(self, task_id: UUID) -> tuple[str, str | None, int]:
        """The task's one dead letter: reason, error, attempts."""
        (row,) = await self.road.ask(
            "select reason, error, attempts from postroad.dead_letter where task_id = :id", id=task_id
        )
        reason, error, attempts = row
        return reason, error, attempts

    async def violated(self) -> dict[str, int]:
        """The invariants that do not hold."""
        return await self.road.violated()

    def stream(self, stage: str, lane: Priority = Priority.NORMAL) -> str:
        """The stage's stream, or one of them."""
        return self.keys.stream(self.pipeline.name, stage, lane.lane)

    async def pending(self, stage: str) -> dict[str, tuple[str, int]]:
        """Who holds each pending entry of a stage, and how often it was delivered."""
        if not await self.has_stream(stage):
            return {}
        entries: Any = await self.client.xpending_range(
            self.stream(stage), group_name(self.pipeline.name, stage), min="-", max="+", count=100_000
        )
        return {one["message_id"]: (one["consumer"], one["times_delivered"]) for one in entries}

    async def are_parked(self, stage: str, count: int = 1) -> bool:
        """True if ``count`` entries of a stage are parked."""
        return [owner for owner, _ in (await self.pending(stage)).values()].count(RETRY_CONSUMER) == count

    async def is_quiet(self) -> bool:
        """True if no stream holds an entry."""
        lengths = [await self.client.xlen(self.stream(stage)) for stage in self.pipeline.graph()]
        return not any(lengths)

    async def has_stream(self, stage: str) -> bool:
        """True if the relay has created the stage's stream."""
        return bool(await self.client.exists(self.stream(stage)))

    async def abandon(self, stage: str, *, consumer: str, deliveries: int, count: int) -> list[str]:
        """Give ``count`` new entries to a consumer that is dead and had them ``deliveries`` times; their ids."""
        stream, group = self.stream(stage), group_name(self.pipeline.name, stage)

        async def are_there() -> bool:
            return await self.client.xlen(stream) >= count

        await until(are_there)
        answer: Any = await self.client.xreadgroup(group, consumer, {stream: ">"}, count=count)
        entries = [entry_id for batch in answer.values() for entry_id, _ in batch]
        assert len(entries) == count
        await self.client.xclaim(stream, group, consumer, 0, entries, retrycount=deliveries, justid=True)
        return entries


@contextlib.asynccontextmanager
async def open_line(settings: Settings, pipeline: Pipeline) -> AsyncIterator[Line]:
    """``pipeline`` deployed and a relay running; no worker yet."""
    async with open_road(settings, pipeline) as road:
        line = Line(road, pipeline)
        line.relay()
        try:
            yield line
        finally:
            await line.close()


def numbers(count: int) -> Iterable[dict[str, int]]:
    """``count`` payloads that tell their place."""
    return ({"n": number} for number in range(count))
