"""The entries that one stage holds in this process, and how many more it has room for."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ..core.event import Envelope
from ..outbox.process import Running
from .inbox import Delivery


@dataclass(slots=True)
class Held:
    """One entry that is ours, and what is being done with it."""

    work: asyncio.Task[None]
    is_reclaimed: bool
    has_begun: bool = False
    """Its handler runs, or ran: it is let finish when we stop."""
    attempt: Running | None = None
    """What it runs, once it has begun."""
    is_cancelled: bool = False
    """Somebody cancelled its task: nothing that its attempt does counts any more."""
    is_parting: bool = False
    """It is being parked, and may come back before we hear that it was."""


class Holding:
    """What is held, of at most ``slots`` entries. While it ``is_closed`` there is no room for any more."""

    def __init__(self, slots: int) -> None:
        self.entries: dict[str, Held] = {}
        """By the id of the entry."""
        self.is_closed = False
        self.limit: Callable[[], int | None] = lambda: None
        """How many entries may be held now; ``None``: as many as there are slots. Less while a service is away."""
        self._slots = slots
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def room(self) -> int:
        """How many more entries there is room for."""
        if self.is_closed:
            return 0
        limit = self.limit()
        return (self._slots if limit is None else min(limit, self._slots)) - len(self.entries)

    @property
    def share(self) -> int:
        """How many entries may be reclaimed now: half of the room; and half of the slots, however full they are.

        New entries fill every slot as soon as it is free, so what is reclaimed waits for its slot here, among them:
        neither starves.
        """
        if self.is_closed or self.limit() is not None:
            return max(self.room, 0)
        reclaimed = sum(held.is_reclaimed for held in self.entries.values())
        return max(self.room // 2, (self._slots + 1) // 2 - reclaimed)

    @property
    def waiting(self) -> list[str]:
        """The entries whose handlers have not begun."""
        return [entry_id for entry_id, held in self.entries.items() if not held.has_begun]

    async def wait_for_room(self, stopping: asyncio.Event) -> int:
        """Wait until there is room; how much. Not meaningful once ``stopping``, of which ``notify`` tells."""
        while not stopping.is_set() and self.room <= 0:
            self._changed.clear()
            await self._changed.wait()
        return max(1, self.room)

    def notify(self) -> None:
        """Whoever waits for room is to look again."""
        self._changed.set()

    def holds(self, entry_id: str) -> bool:
        """True if the entry was taken already, in another reply to the same end."""
        held = self.entries.get(entry_id)
        return held is not None and not held.is_parting

    def busy(self, entries: Collection[str]) -> set[asyncio.Task[None]]:
        """The work on ``entries`` that has not ended."""
        return {held.work for entry_id in entries if not (held := self.entries[entry_id]).work.done()}

    def release(self, entry_id: str, held: Held | None) -> bool:
        """Forget an entry, unless it was handed back, or has come again, since it was ``held``; whether it was ours."""
        is_ours = held is not None and self.entries.get(entry_id) is held
        if is_ours:
            del self.entries[entry_id]
        self.notify()
        return is_ours


def entry_id_of(delivery: Delivery) -> str:
    """The id of an entry, of ours or not."""
    return delivery.entry_id if isinstance(delivery, Envelope) else delivery
