"""Record in Postgres which pipelines there are, and which stage waits for which.

Postgres, not the code of this or that process, says how a task goes on: during a deployment processes of both
versions run. ``postroad deploy`` writes a changed graph; a worker records a pipeline that nobody knows yet, and never
changes one, so that a worker of the old version that restarts does not bring the old graph back.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.command_stage import CommandStage
from ..core.database import Statements
from ..core.errors import RefusedError
from ..core.http_stage import HttpStage, shown
from ..core.jsontext import encode
from ..core.pipeline import Pipeline, Stage
from ..outbox.request import ready_stages

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stranded:
    """What is at a stage that a new graph no longer has."""

    stage: str
    tasks: int
    """How many wait for it, run in it or will retry it."""
    dead_letters: int

    def __str__(self) -> str:
        return f"{self.stage!r} ({self.tasks:,} tasks, {self.dead_letters:,} dead letters)"


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a deployment came to: the version now in force, and whether it is new or changed."""

    pipeline: str
    version: int
    change: str
    """``new``, ``changed`` or ``unchanged``."""
    dropped: Sequence[Stranded] = ()
    """What was at stages that the graph no longer has, if it was forced upon them."""


def definition(pipeline: Pipeline) -> dict[str, Any]:
    """The graph of ``pipeline`` as JSON, in the order in which stages can run."""
    return {
        "stages": [
            {
                "stage": stage.name,
                "after": list(stage.after),
                "retries": stage.retries,
                "timeout_seconds": stage.timeout.total_seconds(),
                **_limits(stage),
                **_doer(stage),
            }
            for stage in pipeline.graph().values()
        ],
        **({"priorities": True} if pipeline.priorities else {}),
        **({} if pipeline.schema is None else {"schema": dict(pipeline.schema)}),
    }


def _limits(stage: Stage) -> dict[str, Any]:
    """Those that it has: what is not there must not make a new version of every pipeline."""
    limits = {} if stage.rate is None else {"rate": str(stage.rate), "burst": stage.rate.burst}
    return limits if stage.max_running is None else limits | {"max_running": stage.max_running}


def _doer(stage: Stage) -> dict[str, Any]:
    """Who does its work, if that is no function: as people may see it."""
    match stage.handler:
        case HttpStage() as service:
            return {"url": shown(service.url), "completion": service.completion}
        case CommandStage() as program:
            return {"command": program.command[0]}
        case _:
            return {}


async def deploy(connection: AsyncConnection, pipeline: Pipeline, schema: str, *, force: bool = False) -> Deployment:
    """Make ``pipeline``'s graph the one in force, in the transaction of ``connection``.

    Does nothing if it is already. If it changed, every stage that is ready by the new graph is asked for, and tasks
    that have nothing left to do are completed. A graph without a stage at which tasks are is refused, unless ``force``
    says to drop their work there: they then go on by the new graph. Raises ``DeclarationError`` for a graph that cannot
    be, ``RefusedError`` if it would strand tasks; whatever was done in the transaction is then to be rolled back.
    """
    wanted = definition(pipeline)
    sql = Statements(__package__ or "", schema)
    await connection.exec_driver_sql(sql["lock_deployments"])
    names = {"pipeline": pipeline.name, "stage": list(pipeline.graph())}
    rows = await connection.exec_driver_sql(sql["stranded"], names)
    stranded = tuple(Stranded(row.stage, row.tasks, row.dead_letters) for row in rows)
    if stranded and not force:
        raise RefusedError(
            f"tasks of pipeline {pipeline.name!r} are at stages that its new graph does not have:"
            f" {', '.join(map(str, stranded))}. Let them pass first, under the old graph, or deploy with --force: their"
            " work there is dropped, and they go on by the new graph"
        )
    recorded = (
        await connection.exec_driver_sql(
            sql["record_pipeline"],
            {"pipeline": pipeline.name, "definition": encode(wanted), "priorities": pipeline.priorities},
        )
    ).one_or_none()
    if recorded is None:
        _, version = await _in_force(connection, pipeline.name, schema)
        return Deployment(pipeline.name, version, "unchanged")
    stages = pipeline.graph().values()
    await connection.exec_driver_sql(
        sql["record_stages"],
        {
            "pipeline": pipeline.name,
            "stage": [stage.name for stage in stages],
            "after": ["{" + ",".join(stage.after) + "}" for stage in stages],
        },
    )
    if not recorded.is_new:
        pairs = [(pipeline.name, stage.name) for stage in stages]
        await connection.exec_driver_sql(sql["hold_dead"], {"pipeline": pipeline.name})
        await connection.exec_driver_sql(sql["drop_dead"], {"pipeline": pipeline.name})
        await connection.exec_driver_sql(*ready_stages(schema, reason="deploy", stages=pairs))
        await connection.exec_driver_sql(sql["complete"], {"pipeline": pipeline.name})
    return Deployment(pipeline.name, recorded.version, "new" if recorded.is_new else "changed", stranded)


async def record_if_new(connection: AsyncConnection, pipeline: Pipeline, stages: list[str], schema: str) -> None:
    """What a worker does at its start, for the ``stages`` it is to run: record the pipeline if nobody knows it.

    Warns if the graph in force is another one; raises ``RefusedError`` if it lacks one of ``stages``, which would wait
    for entries that never come.
    """
    await connection.exec_driver_sql(Statements(__package__ or "", schema)["lock_deployments"])
    in_force, version = await _in_force(connection, pipeline.name, schema)
    if in_force is None:
        deployment = await deploy(connection, pipeline, schema)
        log.info("recorded pipeline %s, version %d", pipeline.name, deployment.version)
        return
    known = {stage["stage"]: stage["after"] for stage in in_force["stages"]}
    missing = [stage for stage in stages if stage not in known]
    if missing:
        raise RefusedError(
            f"version {version} of pipeline {pipeline.name!r}, which is in force, has no stage"
            f" {', '.join(map(repr, missing))}: run postroad deploy"
        )
    graph = {stage.name: list(stage.after) for stage in pipeline.graph().values()}
    if (known, in_force.get("priorities", False)) != (graph, pipeline.priorities):
        log.warning(
            "pipeline %s: version %d, which is in force, has another graph than this code; postroad deploy changes it",
            pipeline.name, version,
        )  # fmt: skip


async def _in_force(connection: AsyncConnection, pipeline: str, schema: str) -> tuple[dict[str, Any] | None, int]:
    sql = Statements(__package__ or "", schema)
    row = (await connection.exec_driver_sql(sql["pipeline_in_force"], {"pipeline": pipeline})).one_or_none()
    return (row.definition, row.version) if row else (None, 0)
