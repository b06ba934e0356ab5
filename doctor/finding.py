"""What a check comes to: how bad it is, what it saw, and what to do."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """From nothing to say to something is broken. ``UNKNOWN``: it could not be looked at."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """The higher the worse."""
        return list(Level).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check saw, in a sentence; ``do`` says what to do, and is empty only if there is nothing."""

    level: Level
    saw: str
    do: str = ""


def ok(saw: str) -> Finding:
    """As it should be."""
    return Finding(Level.OK, saw)


def unknown(saw: str, do: str) -> Finding:
    """It could not be looked at, wholly or in part."""
    return Finding(Level.UNKNOWN, saw, do)


def warning(saw: str, do: str) -> Finding:
    """It works, and somebody should see to it."""
    return Finding(Level.WARNING, saw, do)


def error(saw: str, do: str) -> Finding:
    """Work stands still or may be lost, or soon will."""
    return Finding(Level.ERROR, saw, do)


def told(seconds: float) -> str:
    """A duration in words, in the largest unit that leaves a number to read: ``90 s``, ``6 min``, ``3 h``, ``2 d``."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def told_bytes(count: float) -> str:
    """A size in words: ``12 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def many(count: int, noun: str, *, is_cut: bool = False) -> str:
    """``1 key``, ``2 keys``, ``1,000 or more keys``."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count:,}{' or more' if is_cut else ''} {noun if count == 1 and not is_cut else plural}"


def listed(names: list[str], most: int = 5) -> str:
    """Names in a sentence; of many the first, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"
