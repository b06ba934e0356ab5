"""The rate of a key: over all processes of the intake, and in the fields that tell a client of it.

The fields are those of draft-ietf-httpapi-ratelimit-headers-11.
"""

import asyncio
import logging
import math
from collections.abc import Mapping

from redis.exceptions import RedisError

from ..core.broker import Clients, Keys, told
from ..core.bucket import Bucket, Grant, OwnShare
from ..core.errors import SettingsError
from ..core.rate import Rate
from ..core.settings import Settings
from .keyring import Caller
from .problems import Problem, exceeded

log = logging.getLogger(__name__)

PATIENCE = 0.25
"""Seconds that Redis has to answer; then we go on without it."""

LEFT_ALONE = 1.0
"""Seconds for which a Redis that did not answer is not asked again."""

POLICY = "key"
"""What the fields and problems call the rate of a key."""


class Quota:
    """Counts requests. A Redis that is away costs nobody an answer: each process then counts for itself."""

    def __init__(self, settings: Settings) -> None:
        self._keys = Keys(settings.prefix, settings.shards)
        self._clients = Clients(settings) if settings.redis_url else None
        self._own: dict[str, OwnShare] = {}
        self._away_until = float("-inf")
        self._is_away = False

    async def aclose(self) -> None:
        """Close the connections."""
        if self._clients is not None:
            await self._clients.aclose()

    async def take(self, caller: Caller, want: int) -> Grant | None:
        """How many of ``want`` requests the caller's rate grants; ``None`` without one."""
        if caller.rate is None or caller.key_id is None:
            return None
        grant = await self._ask(caller.key_id, caller.rate, want)
        if grant is None:
            grant = self._own.setdefault(caller.key_id, OwnShare()).take(want, caller.rate)
        return grant

    async def _ask(self, key_id: str, rate: Rate, want: int) -> Grant | None:
        loop = asyncio.get_running_loop()
        if self._clients is None or loop.time() < self._away_until:
            return None
        if self._is_away:
            # One request tries; the others need not wait with it.
            self._away_until = loop.time() + LEFT_ALONE
        key, shard = self._keys.quota(key_id)
        try:
            async with asyncio.timeout(PATIENCE):
                grant = await Bucket(self._clients.of(shard), key).take(want, rate)
        except (RedisError, OSError, TimeoutError, SettingsError) as error:
            if not self._is_away:
                log.warning("Redis does not answer, each process counts requests by itself: %s", told(error))
            self._is_away, self._away_until = True, loop.time() + LEFT_ALONE
            return None
        if self._is_away:
            log.info("Redis answers again, requests are counted over all processes")
        self._is_away, self._away_until = False, float("-inf")
        return grant


def fields(rate: Rate, grant: Grant) -> Mapping[str, str]:
    """What an answer says of a rate: how much of it there is, and how much is left.

    ``q`` is what may come at once after a rest, ``w`` the seconds in which as much comes back. Within ``t`` seconds no
    more than ``r`` should come: whoever spreads ``r`` over them keeps to the rate, however large the burst is; if ``r``
    is 0 there is one then. All are whole: where they cannot say the rate exactly they understate it.
    """
    effective = grant.wait or max(1, grant.left) / rate.per_second
    return {
        "RateLimit-Policy": f'"{POLICY}";q={rate.burst};w={_seconds(rate.burst / rate.per_second)}',
        "RateLimit": f'"{POLICY}";r={grant.left};t={_seconds(effective)}',
    }


def refusal(caller: Caller, grant: Grant, *, missing: int = 1) -> Problem:
    """429 for ``missing`` requests that were not granted."""
    assert caller.rate is not None
    rate = caller.rate
    # So many come back one after the other; more than a burst never are there at once.
    after = max(grant.wait, min(missing, rate.burst) / rate.per_second) if missing > 1 else grant.wait
    detail = f"the rate of the key {caller.name!r} is {rate}, {rate.burst:,} at once"
    return exceeded(POLICY, detail, after=_seconds(after))


def _seconds(time: float) -> int:
    return max(1, math.ceil(time - 1e-9))
