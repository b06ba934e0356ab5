"""Rate: how many attempts a stage may begin in a time, over all of its processes."""

import math
import re
from dataclasses import dataclass

from .errors import DeclarationError

OFF = "off"
"""What stands for the rate of a stage that people have freed from the one in its code."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)/([smhd])")

LEAST, MOST = 1 / 86400, 1e6
"""Attempts in a second: one a day, and more than any stage can begin."""

HEADWAY = 0.1
"""Seconds' worth of attempts that may begin at once unless a burst is given."""


@dataclass(frozen=True, slots=True)
class Rate:
    """``per_second`` attempts on average, ``burst`` of them at once after a rest.

    In any ``t`` seconds at most ``burst + per_second * t`` begin.
    """

    per_second: float
    burst: int

    @classmethod
    def parse(cls, text: str, burst: int | None = None) -> "Rate":
        """Of ``200/s``, ``30/m``, ``1000/h`` or ``10/d``, and a burst, by default a tenth of a second's worth.

        Raises ``DeclarationError`` that says what is wrong.
        """
        match = _RATE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise DeclarationError(f"{text!r} is no rate such as 200/s, 30/m, 1000/h or 10/d")
        per_second = float(match[1]) / _UNITS[match[2]]
        if not LEAST <= per_second <= MOST:
            raise DeclarationError(f"{text!r} is not between 1/d and {MOST:,.0f}/s; pause a stage that is not to run")
        if burst is None:
            burst = max(1, math.floor(per_second * HEADWAY))
        elif not isinstance(burst, int) or isinstance(burst, bool) or not 1 <= burst <= MOST:
            raise DeclarationError(f"burst must be a whole number from 1 to {MOST:,.0f}, not {burst!r}")
        return cls(per_second, burst)

    def __str__(self) -> str:
        for unit, seconds in _UNITS.items():
            count = self.per_second * seconds
            if count >= 1 and math.isclose(count, round(count)):
                return f"{round(count)}/{unit}"
        return f"{self.per_second:g}/s"
