"""Publish events into the streams of one shard, each page once.

The marker in Redis says how far this shard has got. The script compares it, appends, and advances it in one step, so a
page goes in once although two relays may try, a reply may be lost, and a stopped relay may wake with old plans.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from ..core.broker import Keys, Scripts, group_name, reset_if_demoted
from ..outbox.marker import Marker
from ..outbox.ticks import Appended
from .route import Lane


@dataclass(frozen=True, slots=True)
class Entry:
    """An event on its way to one stage."""

    lane: Lane
    event: Appended


class Publication(Enum):
    """What a try to publish came to. Only after ``DONE`` is anything in Redis."""

    DONE = "published"
    MOVED = "moved"
    MISSING = "missing"


class Shard:
    """One shard of Redis as the relay sees it."""

    def __init__(self, number: int, keys: Keys, client: Redis) -> None:
        self.number = number
        self._keys = keys
        self._client = client
        self._scripts = Scripts(__package__ or "", client)

    def holds(self, pipeline: str, stage: str) -> bool:
        """True if the stage's stream is in this shard."""
        return self._keys.shard_of(pipeline, stage) == self.number

    async def publish(self, entries: Sequence[Entry], *, seen: str, then: Marker) -> Publication:
        """Append ``entries`` in their order and advance the marker from ``seen`` to ``then``, or do nothing at all."""
        lanes = list(dict.fromkeys(entry.lane for entry in entries))
        index = {lane: place for place, lane in enumerate(lanes, start=2)}
        arguments: list[str | int] = [seen, str(then), len(lanes)]
        arguments += [group_name(lane.pipeline, lane.stage) for lane in lanes]
        for entry in entries:
            event = entry.event
            arguments += (
                index[entry.lane],
                event.position,
                event.type,
                str(event.task_id),
                event.time,
                event.traceparent or "",
            )
        keys = [self._keys.marker(self.number), *map(self._stream, lanes)]
        answer = await self._scripts.run("publish", keys, arguments)
        return Publication(answer[0])

    async def inspect(self, lanes: Iterable[Lane]) -> tuple[str, list[Lane]]:
        """The marker's text, ``""`` if there is none, and those of ``lanes`` whose stream or group is gone."""
        held = [lane for lane in lanes if self.holds(lane.pipeline, lane.stage)]
        keys = [self._keys.marker(self.number), *map(self._stream, held)]
        groups = [group_name(lane.pipeline, lane.stage) for lane in held]
        marker, *missing = await self._scripts.run("inspect", keys, groups)
        return marker, [held[int(place) - 1] for place in missing]

    async def check_writable(self) -> None:
        """Raise what Redis answers if it takes no writes, being a replica, or full; changes nothing."""
        await self._client.setrange(self._keys.marker(self.number), 0, "")

    async def ping(self) -> None:
        """Return if Redis answers; raise the error otherwise."""
        await self._client.ping()

    async def heed(self, error: Exception) -> None:
        """After a failed call: connect anew if the server is not the one to ask any more."""
        await reset_if_demoted(self._client, error)

    async def set_marker(self, marker: Marker, *, seen: str) -> bool:
        """Set the marker if it is still ``seen``; False if somebody was first."""
        key = self._keys.marker(self.number)
        return bool(await self._scripts.run("set_marker", [key], [seen, str(marker)]))

    async def create(self, lane: Lane) -> None:
        """Create the stream of a lane and its group, from the first entry on; harmless if they are there.

        Workers never do this: that a group is there says that everything has been asked for that was ready before.
        """
        try:
            await self._client.xgroup_create(
                self._stream(lane), group_name(lane.pipeline, lane.stage), id="0", mkstream=True
            )
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    def _stream(self, lane: Lane) -> str:
        return self._keys.stream(lane.pipeline, lane.stage, lane.name)
