"""The pipelines in force, and what is at each of their stages, from Postgres alone."""

from collections.abc import Collection
from itertools import groupby
from typing import Any

from psycopg.errors import QueryCanceled
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import Statements
from ..core.errors import TooSlowError
from .answers import jsonable
from .listing import PATIENCE

MOST = 10_000
"""Up to so many are counted: to count millions would take longer than the answer is good for."""

_OF_PIPELINE = ("pipeline", "version", "deployed_at", "priorities")
_OF_STAGE = ("stage", "after", "paused", "resting_until", "trouble", "rate", "burst", "max_running")


async def list_pipelines(
    connection: AsyncConnection,
    schema: str,
    *,
    pipelines: Collection[str] | None = None,
    most: int = MOST,
    patience: int = PATIENCE,
) -> list[dict[str, Any]]:
    """The graphs in force, as JSON, with what is at each stage; of ``pipelines``, if they are given.

    Each count is ``{"count", "capped"}``; if that is true there are at least so many: only the ``most`` oldest open
    tasks of a pipeline are looked at. In a transaction that does nothing else. Raises ``TooSlowError``.
    """
    names = None if pipelines is None else list(pipelines)
    await connection.execute(
        select(func.set_config("statement_timeout", f"{patience}s", True), func.set_config("jit", "off", True))
    )
    try:
        rows = await connection.exec_driver_sql(
            Statements(__package__ or "", schema)["pipelines"], {"pipeline": names, "most": most}
        )
    except DBAPIError as error:
        if isinstance(error.orig, QueryCanceled):
            raise TooSlowError(f"counting took longer than {patience} s: ask for one pipeline") from error
        raise
    stages = [dict(row._mapping) for row in rows]
    return [
        jsonable({name: first[name] for name in _OF_PIPELINE})
        | {"stages": [_stage(one, most) for one in (first, *others)]}
        for _, (first, *others) in groupby(stages, key=lambda stage: stage["pipeline"])
    ]


def _stage(row: dict[str, Any], most: int) -> dict[str, Any]:
    is_more = row["seen"] > most
    counts = {name: _count(row[name], is_more) for name in ("ready", "retrying", "waiting", "scheduled")}
    dead = _count(min(row["dead"], most), row["dead"] > most)
    age = row["oldest_ready"]
    return (
        jsonable({name: row[name] for name in _OF_STAGE})
        | counts
        | {"dead": dead, "oldest_ready_seconds": None if age is None else round(max(age, 0), 3)}
    )


def _count(count: int, is_capped: bool) -> dict[str, Any]:
    return {"count": count, "capped": is_capped}
