"""Run one stage on one payload, in memory: the handler goes through the same runner as in a worker."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any
from uuid import UUID

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core import outcome, telemetry
from ..core.command_stage import CommandStage
from ..core.errors import NotFoundError, RefusedError, first_line
from ..core.http_stage import HttpStage
from ..core.jsontext import encode
from ..core.outcome import Reject, Retry, Snooze
from ..core.pipeline import Pipeline, Stage
from ..core.task import Task, new_task_id
from ..stages.attempt import run_over
from ..stages.command import CommandHandler
from ..stages.runner import HandlerThreads, Run, run_handler

HUNG_LIMIT = 200
"""As in a worker; nothing ends when they are so many, since the process is the test's."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The handler returned; ``result`` is what later stages will be given: decoded from the JSON that is kept."""

    result: Any


async def run_stage(
    pipeline: Pipeline,
    stage: str,
    payload: Any = None,
    *,
    results: Mapping[str, Any] | None = None,
    attempt: int = 1,
    labels: Mapping[str, str] | None = None,
    task_id: UUID | None = None,
    connection: AsyncConnection | None = None,
) -> Completed | Retry | Snooze | Reject:
    """What one attempt of ``stage`` on ``payload`` comes to, by the rules of a worker; no server is needed.

    A worker's rules: the payload and the ``results`` of earlier stages, by their names, pass through JSON; a plain
    function runs in a thread; the stage's timeout is a ``Retry``, and so is any exception, which is then its
    ``__cause__``; a result that is no JSON, or too large, is a ``Reject``. That a ``Retry`` after the last attempt
    becomes a dead letter is decided later, and not here. Retry, Snooze and Reject are returned, not raised.

    A handler that asks for an ``AsyncConnection`` or ``AsyncSession`` is given ``connection``, the test's own, in a
    savepoint: after ``Completed`` the test sees what the handler wrote, after anything else it is undone. Nothing is
    committed: that is up to the test. A handler that asks for none does not see it.

    Raises ``NotFoundError`` for a stage that there is not, also in ``results``; ``UnstorableError`` for a payload or
    result that is no JSON; ``DeclarationError`` for a pipeline that is not whole; ``TypeError`` if the handler asks
    for a connection and there is none, or is a service.
    """
    graph = pipeline.graph()
    declared = find_stage(graph.values(), stage)
    for name in results or {}:
        find_stage(graph.values(), name)
    if attempt < 1:
        raise ValueError(f"attempt counts from 1, not {attempt}")
    if isinstance(declared.handler, HttpStage):
        raise TypeError(f"{declared.full_name} is a service of its own: postroad stage test tries it")
    if isinstance(declared.handler, CommandStage):
        declared = replace(declared, handler=CommandHandler(declared, declared.handler).run)
    if declared.transaction is not None and connection is None:
        asked = declared.transaction.__name__
        raise TypeError(f"the handler of {declared.full_name} asks for an {asked}: run_stage(…, connection=…) gives it")
    task = Task(
        task_id=task_id or new_task_id(),
        pipeline=pipeline.name,
        stage=declared.name,
        payload=_as_kept(payload),
        results=_as_kept(dict(results or {})),
        attempt=attempt,
        labels=dict(labels or {}),
        created_at=datetime.now(UTC),
        traceparent=telemetry.continued(None),
    )
    threads = HandlerThreads(HUNG_LIMIT)
    if declared.transaction is None or connection is None:
        run = await run_handler(declared, task, threads)
    else:
        run = await _run_in_savepoint(connection, declared, task, threads)
    if isinstance(run.outcome, outcome.Completed):
        return Completed(json.loads(run.outcome.result))
    return run.outcome


def run_stage_sync(
    pipeline: Pipeline,
    stage: str,
    payload: Any = None,
    *,
    results: Mapping[str, Any] | None = None,
    attempt: int = 1,
    labels: Mapping[str, str] | None = None,
    task_id: UUID | None = None,
) -> Completed | Retry | Snooze | Reject:
    """``run_stage`` for a test that is a plain function.

    Not for a handler that asks for a connection, since that belongs to an event loop: ``TypeError``. Raises
    ``RuntimeError`` where an event loop runs already.
    """
    declared = find_stage(pipeline.graph().values(), stage)
    if declared.transaction is not None:
        asked = declared.transaction.__name__
        raise TypeError(
            f"the handler of {declared.full_name} asks for an {asked}, which belongs to an event loop:"
            " make the test 'async def' and await run_stage(…, connection=…)"
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(
            run_stage(pipeline, stage, payload, results=results, attempt=attempt, labels=labels, task_id=task_id)
        )
    raise RuntimeError("an event loop runs here already: await run_stage(…) instead of run_stage_sync(…)")


def find_stage(stages: Iterable[Stage], name: str) -> Stage:
    """The stage named ``stage`` or ``pipeline.stage``. Raises ``NotFoundError``, and ``RefusedError`` for several."""
    known = {stage.full_name: stage for stage in stages}
    found = [stage for stage in known.values() if name in (stage.name, stage.full_name)]
    if len(found) > 1:
        raise RefusedError(f"there are several stages {name!r}: {', '.join(stage.full_name for stage in found)}")
    if not found:
        names = [*known, *(stage.name for stage in known.values())]
        hint = "".join(f" (did you mean {nearest!r}?)" for nearest in get_close_matches(name, names, 1))
        raise NotFoundError(f"there is no stage {name!r}{hint}; there are {', '.join(known) or 'none'}")
    return found[0]


def _as_kept(value: Any) -> Any:
    """``value`` as it comes back from Postgres: a tuple as a list, a number that is a key as text."""
    return json.loads(encode(value))


async def _run_in_savepoint(connection: AsyncConnection, stage: Stage, task: Task, threads: HandlerThreads) -> Run:
    savepoint = await connection.begin_nested()
    run = await run_over(connection, stage, task, threads)
    if not savepoint.is_active:
        return run  # the handler ended the transaction itself
    try:
        if isinstance(run.outcome, outcome.Completed):
            await connection.exec_driver_sql("select")  # it fails if the handler has swallowed an error of Postgres
            await savepoint.commit()
            return run
    except DBAPIError as error:
        run = Run(Retry(f"the transaction failed: {first_line(error)}"), trail=run.trail)
    # A query that the timeout cut off has taken the connection with it, and all that was written.
    if not connection.invalidated:
        await savepoint.rollback()
    return run
