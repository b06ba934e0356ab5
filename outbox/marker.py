"""How far a shard of Redis has got with the outbox, as the shard itself remembers it."""

from collections.abc import Iterable
from dataclasses import dataclass

END = "end"


@dataclass(frozen=True, slots=True)
class Marker:
    """How far a shard has got: the window of ``tick`` up to ``position``, or all of it if that is ``None``."""

    tick: int
    position: int | None

    @property
    def is_part(self) -> bool:
        """True if only a part of the window was published."""
        return self.position is not None

    def __str__(self) -> str:
        return f"{self.tick}:{END if self.position is None else self.position}"

    @classmethod
    def parse(cls, text: str) -> "Marker | None":
        """The marker that ``text`` spells; ``None`` if it is none of ours."""
        tick, _, position = text.partition(":")
        try:
            return cls(int(tick), None if position == END else int(position))
        except ValueError:
            return None


def earliest(markers: Iterable[Marker]) -> Marker | None:
    """The one that is behind all others; of two in one window that which is not through it."""
    return min(markers, key=lambda marker: (marker.tick, not marker.is_part), default=None)
