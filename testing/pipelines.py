"""A whole pipeline at work: on real servers, in a database of its own, its relay and workers in this process.

One worker for each stage, as in production, so that one of them can crash and the others go on.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from ..core import broker, telemetry
from ..core.database import Statements, make_engine
from ..core.errors import NotFoundError, PostroadError, RefusedError
from ..core.jsontext import encode
from ..core.pipeline import Pipeline, Stage
from ..core.servers import Servers
from ..core.settings import Settings
from ..core.task import Status, new_task_id
from ..intake.lookup import find_task
from ..intake.submit import Submitter
from ..outbox.audit import Finding, audit
from ..outbox.submit import Accepted, KeyTaken, Submission, UnknownPipeline
from ..stages.deploy import deploy
from ..stages.worker import Worker
from .crash import Crash, Step, doom, succeed
from .places import Migration, fresh_database, fresh_prefix, servers, template
from .stage import find_stage
from .traffic import POLL, Traffic

LEASE = timedelta(seconds=5)
"""Within it others take over from a worker that has died by itself. Not shorter: on a busy machine a heartbeat may come
seconds late."""

GRACE = timedelta(seconds=1)
"""A test that is over does not wait for handlers."""

POOL = 8
"""Connections of each worker: there is one for each stage, and a server takes 100 connections unless told otherwise."""

CLEAN_UP = 5.0
"""Seconds that a submission has to end after it was cancelled."""

T = TypeVar("T")


class ViolationError(PostroadError, AssertionError):
    """At the end of a road an invariant of ``postroad audit`` does not hold; ``findings`` are those that do not."""

    def __init__(self, findings: list[Finding]) -> None:
        told = "; ".join(f"{one.promise}: {one.violations} violations ({one.name})" for one in findings)
        super().__init__(f"the audit at the end of the road: {told}")
        self.findings = findings


@dataclass(frozen=True, slots=True)
class StageRun:
    """What is known of one stage of a task. ``status`` is ``done``, ``failed`` (a retry or a snooze is ahead) or
    ``dead``; ``result`` is what its handler returned, ``error`` why the last attempt failed."""

    status: str
    attempts: int
    result: Any
    error: str | None


@dataclass(frozen=True, slots=True)
class TaskState:
    """A task as Postgres knows it; ``runs`` are those of its stages that have had an outcome, by their names."""

    task_id: UUID
    pipeline: str
    status: Status
    stage_status: str
    runs: Mapping[str, StageRun]

    @property
    def results(self) -> dict[str, Any]:
        """What each stage that is done has returned."""
        return {name: run.result for name, run in self.runs.items() if run.status == "done"}

    def __str__(self) -> str:
        runs = (
            f"{name} {run.status} (attempts: {run.attempts}{f'; {run.error}' if run.error else ''})"
            for name, run in self.runs.items()
        )
        told = ", ".join(runs) or "no stage has had an outcome"
        return f"task {self.task_id} of {self.pipeline} is {self.status}, {self.stage_status}: {told}"


class Road:
    """Pipelines at work. Made by ``road()``, or by the fixture of that name."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        """Where its database is (``settings.database_url``) and its Redis."""
        self.engine: AsyncEngine = make_engine(settings, application="postroad testing")
        """For the test's own tables in the same database."""
        self._sql = Statements(__package__ or "", settings.schema)
        self._traffic = Traffic(settings)
        self._submitter = Submitter(self.engine, settings.schema)
        self._clients = broker.Clients(settings)
        self._keys = broker.Keys(settings.prefix, settings.shards)
        self._stages: dict[str, Stage] = {}
        self._workers: dict[str, Worker] = {}
        self._crashes: dict[Crash, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()

    async def deploy(self, *pipelines: Pipeline) -> None:
        """Deploy ``pipelines``, and start a worker for each of their stages.

        Raises ``DeclarationError`` for one that is not whole, ``RefusedError`` for a name that works here already.
        """
        self._check()
        for pipeline in pipelines:
            graph = pipeline.graph()
            if any(stage.pipeline == pipeline.name for stage in self._stages.values()):
                raise RefusedError(f"pipeline {pipeline.name!r} is at work on this road already")
            async with self.engine.begin() as connection:
                await deploy(connection, pipeline, self.settings.schema)
            # Before the relay, which creates the streams of what it finds at its start at once.
            self._traffic.relay()
            for stage in graph.values():
                self._stages[stage.full_name] = stage
                self._workers[stage.full_name] = self._traffic.start([stage])

    async def submit(
        self,
        pipeline: Pipeline | str,
        payload: Any = None,
        *,
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> UUID:
        """Accept a task; it is committed when this returns its id. The same ``key`` and content: the same task again.

        Raises ``NotFoundError`` for a pipeline that is not at work here, ``RefusedError`` for a key that stands for
        another content, ``UnstorableError`` for a payload that is no JSON.
        """
        self._check()
        name = pipeline if isinstance(pipeline, str) else pipeline.name
        traceparent = telemetry.continued(None)
        submission = Submission(new_task_id(), name, encode(payload), encode(dict(labels or {})), traceparent, key)
        answer = await self._submitter.submit(submission)
        if isinstance(answer, UnknownPipeline):
            raise NotFoundError(f"pipeline {name!r} is not at work on this road: await road.deploy({name}) first")
        if isinstance(answer, KeyTaken):
            raise RefusedError(f"the key {key!r} stands for task {answer.task_id}, which has another content")
        assert isinstance(answer, Accepted)  # the id is ours, and new
        return answer.task_id

    async def state(self, task_id: UUID) -> TaskState:
        """Where a task is now. Raises ``NotFoundError``."""
        async with self.engine.connect() as connection:
            row = await find_task(connection, task_id, self.settings.schema)
        if row is None:
            raise NotFoundError(f"there is no task {task_id} on this road")
        runs = {
            run["stage"]: StageRun(run["status"], run["attempts"], run["result"], run["error"]) for run in row["stages"]
        }
        return TaskState(task_id, row["pipeline"], Status(row["status"]), row["stage_status"], runs)

    async def wait(self, task_id: UUID, timeout: float = 30) -> TaskState:
        """Wait until a task has ended, as ``completed``, ``failed`` or ``cancelled``; its state then.

        After ``timeout`` seconds ``TimeoutError``, which says where the task is. Raises what ended a worker, if one
        did. Its entries in Redis may be acknowledged a moment later: ``drain`` waits for that too.
        """
        ends_at = self._loop.time() + timeout
        while True:
            self._check()
            state = await self.state(task_id)
            if state.status.is_terminal:
                return state
            if self._loop.time() >= ends_at:
                raise TimeoutError(f"after {timeout:g} s {state}")
            await asyncio.sleep(POLL)

    async def drain(self, timeout: float = 30) -> None:
        """Wait until all is done: every task has ended, no stream holds an entry, no crash is under way.

        After ``timeout`` seconds ``TimeoutError``, which says what is left. Raises what ended a worker, if one did.
        """
        ends_at = self._loop.time() + timeout
        while True:
            self._check()
            left = await self._left()
            if not left:
                return
            if self._loop.time() >= ends_at:
                raise TimeoutError("\n".join([f"not done after {timeout:g} s:", *left]))
            await asyncio.sleep(POLL)

    def crash_before_committing(self, stage: str) -> Crash:
        """Let the worker of ``stage`` (``ship``, or ``orders.ship``) die once, when its handler has returned.

        The next attempt that succeeds is run, and its outcome is not committed: what the handler wrote in its own
        transaction is gone, what it did outside has happened. The worker is gone as by kill -9 once its lease is over;
        another one takes the entry over and **runs the handler again**, with the same ``task.attempt``.

        Raises ``NotFoundError`` and ``RefusedError`` (it is to crash already).
        """
        return self._crash(stage, Step.BEFORE_COMMITTING)

    def crash_before_acknowledging(self, stage: str) -> Crash:
        """Let the worker of ``stage`` die once, when its outcome is committed and Redis does not know.

        The entry is delivered again, to another worker, which finds the stage done and **does not run the handler**.
        ``wait`` may return before that, ``drain`` does not. Raises like ``crash_before_committing``.
        """
        return self._crash(stage, Step.BEFORE_ACKNOWLEDGING)

    async def audit(self) -> None:
        """Check the invariants of ``postroad audit`` now. Raises ``ViolationError``."""
        engine = self.engine.execution_options(isolation_level="REPEATABLE READ")
        async with engine.connect() as connection:
            findings = await audit(connection, self.settings.schema)
        if violated := [finding for finding in findings if finding.violations]:
            raise ViolationError(violated)

    async def close(self, *, check: bool = True) -> None:
        """Stop the workers and the relay, then audit.

        With ``check`` raises ``ViolationError``, what ended a worker, or ``AssertionError`` for a crash that has not
        happened: a test that waits for one in vain has shown nothing.
        """
        async with contextlib.AsyncExitStack() as exits:
            exits.push_async_callback(self.engine.dispose)
            exits.push_async_callback(self._submitter.cancel, within=CLEAN_UP)
            exits.push_async_callback(self._clients.aclose)
            for crash, task in self._crashes.items():
                if crash.task_id is None:
                    task.cancel()
            await asyncio.gather(*self._crashes.values(), return_exceptions=True)
            if check:
                exits.push_async_callback(self._check_the_end)
            await self._traffic.close()

    async def _check_the_end(self) -> None:
        await self.audit()
        if missed := [crash.missed() for crash in self._crashes if not crash.happened]:
            raise AssertionError("; ".join(missed))

    def _crash(self, name: str, step: Step) -> Crash:
        self._check()
        stage = find_stage(self._stages.values(), name)
        if any(crash.stage == stage and not crash.happened for crash in self._crashes):
            raise RefusedError(f"the worker of {stage.full_name} is to crash already; wait for that first")
        crash = Crash(stage, step)
        (consumer,) = self._workers[stage.full_name]._consumers
        doom(consumer, crash)
        self._crashes[crash] = asyncio.create_task(self._execute(crash))
        return crash

    async def _execute(self, crash: Crash) -> None:
        await crash.until_struck()
        name = crash.stage.full_name
        await self._traffic.kill(self._workers[name])
        heir = self._workers[name] = self._traffic.start([crash.stage])
        succeed(*heir._consumers)
        crash.conclude()

    async def _left(self) -> list[str]:
        """What there is to be done, in words; not all of it."""
        async with self.engine.connect() as connection:
            unfinished = [task_id for (task_id,) in await connection.exec_driver_sql(self._sql["unfinished"])]
        if unfinished:
            return [str(await self.state(task_id)) for task_id in unfinished]
        left = []
        for stage in self._stages.values():
            client = self._clients.of(self._keys.shard_of(stage.pipeline, stage.name))
            if entries := await client.xlen(self._keys.stream(stage.pipeline, stage.name)):
                left.append(f"the stream of {stage.full_name} holds {entries} entries")
        left += [f"{crash!r} is under way" for crash in self._crashes if crash.task_id and not crash.happened]
        return left

    def _check(self) -> None:
        """Raise what is wrong with the road itself, rather than wait for it in vain."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "this road belongs to another event loop: give the test and the fixture one loop scope, as by"
                " asyncio_default_fixture_loop_scope and asyncio_default_test_loop_scope"
            )
        self._traffic.check()
        for task in self._crashes.values():
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error


@contextlib.asynccontextmanager
async def road(
    *pipelines: Pipeline, on: Servers | None = None, migration: Migration | None = None
) -> AsyncIterator[Road]:
    """Run ``pipelines`` for the length of the block, then check: audit, and crashes that have not happened.

    On ``on``, as from ``servers()``; by default servers are looked for, or started, for this block alone, which takes
    seconds. ``migration`` makes the tables of the pipelines' author in the database whose URL it is given. If the block
    raises, nothing is checked.

    Raises what ``servers`` and ``Road.deploy`` raise, and at the end what ``Road.close`` does.
    """
    async with contextlib.AsyncExitStack() as exits:
        pair: Servers = on if on is not None else await _entered(exits, servers())
        copied_from = await _entered(exits, template(pair, migration))
        database_url = await _entered(exits, fresh_database(pair, copied_from))
        prefix = await _entered(exits, fresh_prefix(pair))
        yield await exits.enter_async_context(
            open_road(Settings(database_url=database_url, redis_url=pair.redis_url, prefix=prefix), *pipelines)
        )


@contextlib.asynccontextmanager
async def open_road(settings: Settings, *pipelines: Pipeline) -> AsyncIterator[Road]:
    """A road in a database that is migrated, under a prefix that nobody else uses; closed after the block."""
    opened = Road(replace(settings, lease=LEASE, grace=GRACE, pool=POOL))
    ends_well = False
    try:
        await opened.deploy(*pipelines)
        yield opened
        ends_well = True
    finally:
        await opened.close(check=ends_well)


async def _entered(exits: contextlib.AsyncExitStack, manager: contextlib.AbstractContextManager[T]) -> T:
    """Enter ``manager``, which blocks, in a thread; leave it in one too, also if we are cancelled while it enters."""
    entering = asyncio.create_task(asyncio.to_thread(manager.__enter__))

    async def leave() -> None:
        await asyncio.wait({entering})
        if not entering.exception():
            await asyncio.to_thread(manager.__exit__, None, None, None)

    exits.push_async_callback(leave)
    return await asyncio.shield(entering)
