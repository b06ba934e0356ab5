"""An hour at a glance: a bar for each minute, what failed in another colour on top."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MINUTES = 60
WIDTH, HEIGHT = 180, 26


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle of the picture. ``kind``: good, bad, or unknown, where nothing was looked at."""

    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Sparkline:
    """The bars, and what the highest stands for."""

    bars: Sequence[Bar]
    most: int


def sparkline(good: Mapping[int, int], bad: Mapping[int, int], *, known: float) -> Sparkline:
    """``good`` and ``bad`` say how many there were so many minutes ago; older than ``known`` minutes is not known."""
    most = max((good.get(ago, 0) + bad.get(ago, 0) for ago in range(MINUTES)), default=0)
    step = WIDTH / MINUTES
    bars = []
    if known < MINUTES:
        bars.append(Bar("unknown", 0, 0, round((MINUTES - known) * step, 1), HEIGHT))
    for ago in range(MINUTES):
        x, top = round((MINUTES - 1 - ago) * step, 1), float(HEIGHT)
        for kind, counted in (("good", good.get(ago, 0)), ("bad", bad.get(ago, 0))):
            if counted:
                height = max(counted / most * HEIGHT, 1.5)
                top = max(top - height, 0)
                bars.append(Bar(kind, x, round(top, 1), step - 0.6, round(height, 1)))
    return Sparkline(bars, most)
