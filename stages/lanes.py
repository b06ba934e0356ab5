"""The streams of one stage: one, or in a pipeline with priorities one for each, all of which have their share.

To what fetches and runs entries they are one inbox. An entry's id is its own only within its stream, so those of other
lanes than the normal one bear the name of their lane.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from ..core.broker import Keys, Scripts, group_name, is_group_missing
from ..core.event import Envelope
from ..core.priority import WORDS, Priority
from .inbox import Delivery, Inbox, reclaimed
from .turns import Turns

T = TypeVar("T")

_MARK = "@"


class Lanes:
    """The lanes of a stage, as consumer ``consumer`` sees them; only the normal one until ``set_open``.

    A lane that is missing is passed over while there are others: it is the relay's affair.
    """

    def __init__(self, pipeline: str, stage: str, *, consumer: str, keys: Keys, client: Redis, reader: Redis) -> None:
        self._inboxes = {
            lane: Inbox(
                pipeline, stage, consumer=consumer, keys=keys, client=client, reader=reader, lane=lane.lane
            )
            for lane in Priority
        }  # fmt: skip
        self._normal = self._inboxes[Priority.NORMAL]
        self._open = {Priority.NORMAL: self._normal}
        self._met = dict(self._open)
        """Those that are open or were: our name may be in their groups."""
        self._scripts = Scripts(__package__ or "", client)
        self._group = group_name(pipeline, stage)
        self._consumer = consumer
        self._turns = Turns()
        self._due_turns = Turns()

    @property
    def are_open(self) -> bool:
        """Whether all lanes are read."""
        return len(self._open) > 1

    @property
    def others(self) -> int:
        """How many other live consumers there were when we last looked for dead ones."""
        return max(inbox.others for inbox in self._open.values())

    def set_open(self, are_open: bool) -> None:
        """Read all lanes from now on, or the normal one alone. What we hold of the others is still ours to let go."""
        self._open = dict(self._inboxes) if are_open else {Priority.NORMAL: self._normal}
        self._met |= self._open

    # Fetching

    async def read(self, count: int, *, wait: bool = True) -> list[Delivery]:
        """New entries, at most ``count``, by the weights of the lanes.

        Waits up to ``BLOCK`` until there is one, or not; with several lanes what came meanwhile is for the next call.
        After an error the reply may be lost while the entries are ours already: call ``recover``.
        """
        if not self.are_open:
            return await self._normal.read(count, wait=wait)
        deliveries = await self._read_by_turns(count)
        if wait and not deliveries:
            await self.wait()
        return deliveries

    async def wait(self) -> None:
        """Wait up to ``BLOCK`` until there is an entry that nobody has read."""
        if not self.are_open:
            await self._normal.wait()
            return
        positions = await self._in_each(lambda _, inbox: inbox.position())
        # A stream without its group would end the wait at once, again and again.
        streams = {self._inboxes[lane].stream: position for lane, position in positions.items() if position}
        if streams:
            await self._normal.wait_beyond(streams)

    async def interrupt(self) -> None:
        """End a wait of this process."""
        await self._normal.interrupt()

    async def recover(self, held: Collection[str], count: int) -> list[Delivery]:
        """Entries that are pending under our own name and that we do not hold: a reply was lost, nobody died."""
        ours = _by_lane(held)
        return await self._fill(count, lambda lane, inbox, left: inbox.recover(ours.get(lane, ()), left))

    async def reclaim_due(self, count: int) -> tuple[list[Delivery], timedelta | None]:
        """Parked entries that are due, at most ``count``, and the time until the next one is (``None``: none)."""
        if not self.are_open:
            return await self._normal.reclaim_due(count)
        shares = self._due_turns.shares(count)
        waits: dict[Priority, timedelta | None] = {}
        taken: dict[Priority, list[Delivery]] = {lane: [] for lane in self._open}

        async def reclaim(lane: Priority, inbox: Inbox, wanted: int) -> None:
            due, waits[lane] = await inbox.reclaim_due(wanted)
            taken[lane] += due

        await self._in_each(lambda lane, inbox: reclaim(lane, inbox, shares[lane]))
        for lane in waits:
            left = count - sum(map(len, taken.values()))
            if left and len(taken[lane]) == shares[lane]:
                await reclaim(lane, self._inboxes[lane], left)
        self._due_turns.took({lane: len(due) for lane, due in taken.items()}, shares)
        deliveries = [_marked(one, lane) for lane, due in taken.items() for one in due]
        return deliveries, min((wait for wait in waits.values() if wait is not None), default=None)

    async def reclaim_dead(self, count: int) -> list[Delivery]:
        """Entries of consumers whose heartbeat has stopped, at most ``count``, the most urgent first."""
        return await self._fill(count, lambda _, inbox, left: inbox.reclaim_dead(left))

    async def relist(self) -> None:
        """List the parked entries by due time again if such a list was lost."""
        await self._in_each(lambda _, inbox: inbox.relist())

    async def trim(self) -> int:
        """Delete entries that are pending no more but stayed in their stream; returns how many."""
        return sum((await self._in_each(lambda _, inbox: inbox.trim())).values())

    # Letting go

    async def count(self, envelope: Envelope) -> None:
        """Count this delivery of an entry that dead workers left, just before it runs."""
        lane, entry_id = _split(envelope.entry_id)
        await self._inboxes[lane].count(replace(envelope, entry_id=entry_id))

    async def acknowledge(self, entries: Sequence[str]) -> int:
        """Forget ``entries``, whose outcomes are committed; returns how many were still pending."""
        ours = _by_lane(entries)
        return sum([await self._inboxes[lane].acknowledge(ids) for lane, ids in ours.items()])

    async def park(self, entries: Iterable[tuple[str, timedelta]]) -> int:
        """Let ``entries`` rest, each for its delay, then be reclaimed by any worker; returns how many were ours."""
        delays = dict(entries)
        ours = _by_lane(delays)
        parked = await self._in_each(
            lambda lane, inbox: inbox.park([(one, delays[_mark(one, lane)]) for one in ours[lane]]),
            {lane: self._inboxes[lane] for lane in ours},
        )
        return sum(parked.values())

    async def leave(self) -> None:
        """Remove our consumer from the groups, if nothing is pending under its name."""
        await self._in_each(lambda _, inbox: inbox.leave(), self._met)

    async def heed(self, error: Exception) -> None:
        """After a failed call: connect anew if the server is not the one to ask any more."""
        await self._normal.heed(error)

    async def close(self) -> None:
        """Close the reader's connection; the other client is the caller's."""
        await self._normal.close()

    async def _read_by_turns(self, count: int) -> list[Delivery]:
        shares = self._turns.shares(count)
        keys = [self._inboxes[lane].stream for lane in shares]
        arguments: list[str | int] = [self._group, self._consumer, count, *shares.values()]
        answer = await self._scripts.run("read", keys, arguments)
        taken = dict(zip(shares, answer, strict=True))
        self._turns.took({lane: len(entries) for lane, entries in taken.items()}, shares)
        return [
            _marked(one, lane)
            for lane, entries in taken.items()
            for one in reclaimed((entry_id, flat, 1) for entry_id, flat in entries)
        ]

    async def _fill(
        self, count: int, fetch: Callable[[Priority, Inbox, int], Awaitable[list[Delivery]]]
    ) -> list[Delivery]:
        """What ``fetch`` brings of one lane after the other, at most ``count``."""
        taken: list[Delivery] = []

        async def go_on(lane: Priority, inbox: Inbox) -> None:
            if len(taken) < count:
                taken.extend(_marked(one, lane) for one in await fetch(lane, inbox, count - len(taken)))

        await self._in_each(go_on)
        return taken

    async def _in_each(
        self, work: Callable[[Priority, Inbox], Awaitable[T]], lanes: Mapping[Priority, Inbox] | None = None
    ) -> dict[Priority, T]:
        """What ``work`` comes to in each of ``lanes``, or of the open ones; raises if all of them are missing."""
        done: dict[Priority, T] = {}
        missing: RedisError | None = None
        for lane, inbox in (self._open if lanes is None else lanes).items():
            try:
                done[lane] = await work(lane, inbox)
            except RedisError as error:
                if not is_group_missing(error):
                    raise
                missing = error
        if missing is not None and not done:
            raise missing
        return done


def _mark(entry_id: str, lane: Priority) -> str:
    return entry_id if lane is Priority.NORMAL else f"{entry_id}{_MARK}{lane.word}"


def _split(entry_id: str) -> tuple[Priority, str]:
    plain, _, word = entry_id.partition(_MARK)
    return WORDS[word] if word else Priority.NORMAL, plain


def _marked(delivery: Delivery, lane: Priority) -> Delivery:
    if lane is Priority.NORMAL:
        return delivery
    if isinstance(delivery, Envelope):
        return replace(delivery, entry_id=_mark(delivery.entry_id, lane))
    return _mark(delivery, lane)


def _by_lane(entries: Iterable[str]) -> dict[Priority, list[str]]:
    """The ids of ``entries`` without their marks, by lane."""
    ids: dict[Priority, list[str]] = {}
    for entry_id in entries:
        lane, plain = _split(entry_id)
        ids.setdefault(lane, []).append(plain)
    return ids
