"""Where in Redis the entry of one task is: what Postgres cannot know, asked with little patience."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from redis.exceptions import RedisError

from ..core.broker import RETRY_CONSUMER, Clients, Keys, Scripts, group_name, told
from ..core.errors import SettingsError
from ..core.priority import Priority
from ..core.rate import Rate
from ..core.settings import Settings
from .marker import Marker

PATIENCE = 1.0
"""Seconds that Redis has for all that it is asked about one task."""

LOOKED_AT = 1000
"""Entries of a stream that are looked at: about a millisecond for Redis."""


class Spot(StrEnum):
    """Where an entry is."""

    WAITING = "waiting"
    """In the stream; nobody has read it."""
    HELD = "held"
    """A consumer has read it."""
    PARKED = "parked"
    """It rests, until its retry is due."""
    BEYOND = "beyond"
    """Not among the entries that were looked at; there are more."""
    ABSENT = "absent"
    """Nowhere in the stream."""
    MISSING = "missing"
    """There is no stream, or no group."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What Redis says of one stage of a task."""

    marker: Marker | None
    """How far its shard has been published."""
    spot: Spot
    ahead: int = 0
    """Of one that waits: how many are before it."""
    consumer: str | None = None
    """Of one that is held: who has it."""
    is_alive: bool = True
    """Whether they live."""
    is_rate_used_up: bool = False
    """Whether the stage may begin nothing more just now, for its rate."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A stage of a task that is looked for, with what that needs."""

    pipeline: str
    stage: str
    priority: Priority
    has_lanes: bool
    rate: Rate | None


class Locator:
    """Looks entries up. ``why_not`` says why it cannot, if no Redis is named."""

    def __init__(self, settings: Settings) -> None:
        self._keys = Keys(settings.prefix, settings.shards)
        self._clients: Clients | None = None
        self.why_not = "REDIS_URL is not set"
        if settings.redis_url:
            self._clients = Clients(settings, connections=2)

    async def locate(self, task_id: UUID, wanted: Iterable[Wanted]) -> dict[str, Whereabouts] | str:
        """What Redis says of these stages, by name; or why it says nothing, if it does not within ``PATIENCE``."""
        if self._clients is None:
            return self.why_not
        try:
            async with asyncio.timeout(PATIENCE):
                return {one.stage: await self._look(self._clients, task_id, one) for one in wanted}
        except TimeoutError:
            return f"Redis does not answer within {PATIENCE:g} s"
        except (RedisError, OSError, SettingsError) as error:
            return f"Redis does not answer: {told(error)}"

    async def aclose(self) -> None:
        """Close the connections."""
        if self._clients is not None:
            await self._clients.aclose()

    async def _look(self, clients: Clients, task_id: UUID, wanted: Wanted) -> Whereabouts:
        pipeline, stage = wanted.pipeline, wanted.stage
        shard = self._keys.shard_of(pipeline, stage)
        client = clients.of(shard)
        # First: an event that was published after this look is said to be in the outbox, not to be lost.
        marker = Marker.parse(str(await client.get(self._keys.marker(shard)) or ""))
        # When a pipeline is given priorities, tasks are on their way in the lane that was there before.
        lanes = dict.fromkeys([wanted.priority.lane, ""] if wanted.has_lanes else [""])
        found: tuple[Spot, list[str]] = (Spot.MISSING, [])
        for lane in lanes:
            spot, *rest = await Scripts(__package__ or "", client).run(
                "locate",
                [self._keys.stream(pipeline, stage, lane)],
                [group_name(pipeline, stage), str(task_id), LOOKED_AT, RETRY_CONSUMER],
            )
            if found[0] in (Spot.MISSING, Spot.ABSENT):
                found = Spot(spot), rest
        spot, rest = found
        consumer = str(rest[0]) if spot is Spot.HELD else None
        return Whereabouts(
            marker,
            spot,
            ahead=int(rest[0]) if spot is Spot.WAITING else 0,
            consumer=consumer,
            is_alive=consumer is None or bool(await client.exists(self._keys.alive(shard, consumer))),
            is_rate_used_up=wanted.rate is not None and await self._is_used_up(clients, wanted, wanted.rate),
        )

    async def _is_used_up(self, clients: Clients, wanted: Wanted, rate: Rate) -> bool:
        """Whether ``take.lua`` would grant nothing now."""
        client = clients.of(self._keys.shard_of(wanted.pipeline, wanted.stage))
        due = await client.get(self._keys.limit(wanted.pipeline, wanted.stage))
        seconds, microseconds = await client.time()
        ahead = (float(due or 0) - seconds * 1e6 - microseconds) / 1e6
        return rate.burst - ahead * rate.per_second < 1
