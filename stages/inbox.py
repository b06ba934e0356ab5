"""The consumer group of one stage: read, acknowledge, park, reclaim.

What one process holds are the entries that Redis lists as pending under its consumer name. Every entry that it was
given leaves by one of two ways: acknowledged after its outcome was committed, or parked until it is due again.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from ..core.broker import (
    BLOCK,
    RETRY_CONSUMER,
    Keys,
    Scripts,
    group_name,
    is_group_missing,
    reset_if_demoted,
)
from ..core.event import Envelope

Delivery = Envelope | str
"""An entry that was delivered: its envelope, or only its id if it is none of ours or was deleted."""


_BLOCK_MS = int(BLOCK.total_seconds() * 1000)

PAGE = 100
"""Entries that one script moves at most: it keeps all of Redis waiting, for some 40 µs an entry."""


class Inbox:
    """The stream of one stage, as consumer ``consumer`` sees it.

    ``reader`` is a client for blocking reads that nobody else uses; ``client`` one for everything else. ``lane`` says
    which stream, if the stage has several.
    """

    def __init__(
        self, pipeline: str, stage: str, *, consumer: str, keys: Keys, client: Redis, reader: Redis, lane: str = ""
    ) -> None:
        self.pipeline = pipeline
        self.stage = stage
        self._consumer = consumer
        self._client = client
        self._reader = reader
        self._scripts = Scripts(__package__ or "", client)
        self._stream = keys.stream(pipeline, stage, lane)
        self._due = keys.due(pipeline, stage, lane)
        self._group = group_name(pipeline, stage)
        self._shard = keys.shard_of(pipeline, stage)
        self._keys = keys
        self._reader_id: int | None = None
        self.others = 0
        """How many other live consumers there were when we last looked for dead ones."""

    @property
    def stream(self) -> str:
        """The key of the stream."""
        return self._stream

    async def wait(self) -> None:
        """Wait up to ``BLOCK`` until there is an entry that nobody has read."""
        await self.wait_beyond({self._stream: await self.position() or "0-0"})

    async def position(self) -> str | None:
        """The id of the last entry that anybody has read; ``None`` if the group is gone."""
        groups: Any = await self._client.xinfo_groups(self._stream)
        last: dict[str, str] = {group["name"]: group["last-delivered-id"] for group in groups}
        return last.get(self._group)

    async def wait_beyond(self, positions: Mapping[str, str]) -> None:
        """Wait up to ``BLOCK`` until one of these streams has an entry beyond the position that is given with it."""
        streams: dict[Any, Any] = dict(positions)  # redis-py wants an invariant one
        await self._call_reader(lambda: self._reader.xread(streams, count=1, block=_BLOCK_MS))

    async def read(self, count: int, *, wait: bool = True) -> list[Delivery]:
        """New entries, at most ``count``; waits up to ``BLOCK`` for the first, or not, and returns none if none came.

        After an error the reply may be lost while the entries are ours already: call ``recover``.
        """
        block = _BLOCK_MS if wait else None
        answer = await self._call_reader(
            lambda: self._reader.xreadgroup(self._group, self._consumer, {self._stream: ">"}, count=count, block=block)
        )
        return [_delivery(entry_id, fields) for entry_id, fields in _entries(answer)]

    async def heed(self, error: Exception) -> None:
        """After a failed call: connect anew if the server is not the one to ask any more."""
        await reset_if_demoted(self._client, error)

    async def interrupt(self) -> None:
        """End a waiting ``read`` of this process. Cancelling it would lose what Redis is about to hand over."""
        if self._reader_id is not None:
            await self._client.client_unblock(self._reader_id)

    async def recover(self, held: Collection[str], count: int) -> list[Delivery]:
        """Entries that are pending under our own name and that we do not hold: a reply was lost, nobody died."""
        return await self._reclaim(self._consumer, count, held)

    async def count(self, envelope: Envelope) -> None:
        """Count this delivery of an entry that dead workers left, just before it runs."""
        await self._scripts.run(
            "count", [self._stream], [self._group, self._consumer, envelope.entry_id, envelope.deliveries]
        )

    async def acknowledge(self, entries: Sequence[str]) -> int:
        """Forget ``entries``, whose outcomes are committed; returns how many were still pending."""
        if not entries:
            return 0
        # Acknowledged first: a deleted entry that is still pending could never be read again.
        pipeline = self._client.pipeline(transaction=False)
        pipeline.xack(self._stream, self._group, *entries)
        pipeline.xdel(self._stream, *entries)
        acknowledged, _ = await pipeline.execute()
        return int(acknowledged)

    async def park(self, entries: Iterable[tuple[str, timedelta]]) -> int:
        """Let ``entries`` rest, each for its delay, then be reclaimed by any worker; returns how many were ours.

        A delay of 0 hands an entry back at once.
        """
        left = [(entry_id, max(0, round(delay.total_seconds() * 1000))) for entry_id, delay in entries]
        parked = 0
        for start in range(0, len(left), PAGE):
            arguments: list[str | int] = [self._group, self._consumer, RETRY_CONSUMER]
            for pair in left[start : start + PAGE]:
                arguments += pair
            parked += int(await self._scripts.run("park", [self._stream, self._due], arguments))
        return parked

    async def reclaim_due(self, count: int) -> tuple[list[Delivery], timedelta | None]:
        """Parked entries that are due, at most ``count``, and the time until the next one is (``None``: none)."""
        arguments: list[str | int] = [self._group, self._consumer, RETRY_CONSUMER, count]
        wait, *entries = await self._scripts.run("reclaim_due", [self._stream, self._due], arguments)
        return reclaimed(entries), None if wait < 0 else timedelta(milliseconds=wait)

    async def reclaim_dead(self, count: int) -> list[Delivery]:
        """Entries of consumers whose heartbeat has stopped, at most ``count``; those that have none left are removed.

        Their ``deliveries`` hold this one too, but Redis hears of it only by ``count``.
        """
        taken: list[Delivery] = []
        for owner, pending in await self._dead():
            if not pending:
                await self._scripts.run("leave", [self._stream], [self._group, owner])
            elif len(taken) < count:
                taken += await self._reclaim(owner, count - len(taken), ())
        return taken

    async def relist(self) -> None:
        """List the parked entries by due time again if that list was lost."""
        position = "-"
        while position:
            arguments = [self._group, RETRY_CONSUMER, position]
            last = await self._scripts.run("relist", [self._stream, self._due], arguments)
            position = f"({last}" if last else ""

    async def trim(self) -> int:
        """Delete entries that are pending no more but stayed in the stream; returns how many, ``PAGE`` at most."""
        return int(await self._scripts.run("trim", [self._stream], [self._group, PAGE]))

    async def leave(self) -> None:
        """Remove our consumer from the group, if nothing is pending under its name."""
        await self._scripts.run("leave", [self._stream], [self._group, self._consumer])

    async def close(self) -> None:
        """Close the reader's connection; the other client is the caller's."""
        await self._reader.aclose()

    async def _call_reader(self, call: Callable[[], Awaitable[Any]]) -> Any:
        if self._reader_id is None:
            self._reader_id = await self._reader.client_id()
        try:
            return await call()
        except BaseException as error:
            self._reader_id = None
            await reset_if_demoted(self._reader, error)
            raise

    async def _dead(self) -> list[tuple[str, int]]:
        """The consumers that seem to be dead, and how many entries are pending under their names."""
        try:
            consumers: Any = await self._client.xinfo_consumers(self._stream, self._group)
        except ResponseError as error:
            if is_group_missing(error):
                return []
            raise
        others = [one for one in consumers if one["name"] not in (self._consumer, RETRY_CONSUMER)]
        if not others:
            return []
        alive = await self._scripts.run("alive", [self._keys.alive(self._shard, one["name"]) for one in others], [])
        self.others = sum(alive)
        return [(one["name"], one["pending"]) for one, lives in zip(others, alive, strict=True) if not lives]

    async def _reclaim(self, owner: str, count: int, held: Collection[str]) -> list[Delivery]:
        alive = self._keys.alive(self._shard, owner)
        arguments: list[str | int] = [self._group, self._consumer, owner, count, *held]
        return reclaimed(await self._scripts.run("reclaim", [self._stream, alive], arguments))


def _entries(answer: Any) -> list[tuple[str, dict[str, str]]]:
    """The entries of the one stream that was read."""
    return [entry for entries in (answer or {}).values() for entry in entries]


def _delivery(entry_id: str, fields: dict[str, str] | None, deliveries: int = 1) -> Delivery:
    return Envelope.parse(entry_id, fields, deliveries) or entry_id


def reclaimed(entries: Iterable[tuple[str, list[str], int]]) -> list[Delivery]:
    """Entries as a script hands them over: id, fields in one list, deliveries."""
    return [
        _delivery(entry_id, dict(zip(flat[::2], flat[1::2], strict=True)), int(deliveries))
        for entry_id, flat, deliveries in entries
    ]
