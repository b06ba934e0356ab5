"""Ask for stages that are ready to run, from Postgres alone: what a rebuild, a requeue and a resume have in common."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from ..core.database import Statements
from ..core.priority import Priority


def ready_stages(
    schema: str,
    *,
    reason: str,
    stages: Iterable[tuple[str, str]] | None = None,
    tasks: Iterable[UUID] | None = None,
    priority: Priority | None = None,
) -> tuple[str, dict[str, Any]]:
    """The statement and its parameters that append ``StageRequested`` for every (task, stage) that is ready to run.

    Restricted to ``stages``, pairs of pipeline and stage, to ``tasks`` and to those of ``priority`` where given.
    ``reason`` stands in the events. The caller executes it in its own transaction; its row count is the number of
    stages asked for.
    """
    pairs = None if stages is None else list(stages)
    parameters = {
        "pipeline": None if pairs is None else [pipeline for pipeline, _ in pairs],
        "stage": None if pairs is None else [stage for _, stage in pairs],
        "task_id": None if tasks is None else list(tasks),
        "priority": None if priority is None else int(priority),
        "reason": reason,
    }
    return Statements(__package__ or "", schema)["request_ready"], parameters
