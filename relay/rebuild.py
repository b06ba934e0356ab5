"""Restore from Postgres what Redis has lost."""

import logging
from collections.abc import Sequence
from typing import Any

import psycopg

from ..core import metrics
from ..outbox.marker import Marker
from ..outbox.request import ready_stages
from ..outbox.ticks import Tick
from .publish import Shard
from .route import Lane

log = logging.getLogger(__name__)


async def rebuild_shard(
    connection: psycopg.AsyncConnection[Any],
    shard: Shard,
    lanes: Sequence[Lane],
    tick: Tick,
    *,
    seen: str,
    schema: str,
    reason: str,
) -> bool:
    """Ask again for every stage of ``shard`` that is ready, and go on from ``tick``, which was made just now.

    The order is what makes it safe to die anywhere: first the tick, then what is ready after it is appended, and
    only then do streams and the marker in Redis say that it was. Returns False if another relay was first.
    """
    held = [lane for lane in lanes if shard.holds(lane.pipeline, lane.stage)]
    asked = await _ask(connection, shard, held, schema=schema, reason=reason)
    for lane in held:
        await shard.create(lane)
    is_ours = await shard.set_marker(Marker(tick.tick, None), seen=seen)
    level = logging.WARNING if asked else logging.INFO
    log.log(level, "rebuilt shard %d (%s): %d stages asked for again", shard.number, reason, asked)
    return is_ours


async def rebuild_lanes(
    connection: psycopg.AsyncConnection[Any],
    shard: Shard,
    lanes: Sequence[Lane],
    *,
    schema: str,
    reason: str,
) -> None:
    """Ask again for what is ready in ``lanes``, whose streams or groups are gone or never were, and create them."""
    asked = await _ask(connection, shard, lanes, schema=schema, reason=reason)
    for lane in lanes:
        await shard.create(lane)
    names = ", ".join(dict.fromkeys(f"{lane.pipeline}.{lane.stage}" for lane in lanes))
    log.log(
        logging.WARNING if asked else logging.INFO,
        "created the stream of %s (%s): %d stages asked for again", names, reason, asked,
    )  # fmt: skip


async def _ask(
    connection: psycopg.AsyncConnection[Any],
    shard: Shard,
    lanes: Sequence[Lane],
    *,
    schema: str,
    reason: str,
) -> int:
    # Or the outbox would fill up with what we ask for at each try, while Redis is a replica or full.
    await shard.check_writable()
    asked = 0
    for priority in dict.fromkeys(lane.priority for lane in lanes):
        stages = [(lane.pipeline, lane.stage) for lane in lanes if lane.priority == priority]
        statement, parameters = ready_stages(schema, reason=reason, stages=stages, priority=priority)
        asked += (await connection.execute(statement, parameters)).rowcount
    metrics.healed(asked, reason)
    return asked
