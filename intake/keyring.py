"""The keys that are good, in memory: no request waits for a look into the table.

All of them are loaded every two seconds, in one statement, and that is when a revocation is heard. Only who comes with
a key that is not among them waits, for a look that all such requests share and that is taken four times a second at
most: one who was given the key just now is let in, and a flood of bad keys is nothing that Postgres would notice.
"""

import asyncio
import contextlib
import hmac
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from ..core.database import Statements
from ..core.errors import DeclarationError, first_line
from ..core.rate import Rate
from .keys import SCOPES, parse, rate_of
from .transaction import as_problem, is_unavailable

log = logging.getLogger(__name__)

INTERVAL = 2.0
"""Seconds after which the keys are loaded again."""

SPACING = 0.25
"""Seconds between two looks at least, however many ask for one."""

PATIENCE = 3.0
"""Seconds that a request waits for a look."""

COARSE = 60.0
"""Seconds within which the use of a key is noted once."""

_NO_DIGEST = bytes(32)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what for they may: everything, unless a key says otherwise."""

    key_id: str | None = None
    name: str | None = None
    scopes: frozenset[str] = frozenset(SCOPES)
    pipelines: frozenset[str] | None = None
    rate: Rate | None = None

    @property
    def actor(self) -> str | None:
        """What is recorded of who did something; ``None`` for somebody without a key."""
        return None if self.name is None else f"key:{self.name}"

    def may_use(self, pipeline: str) -> bool:
        """True if this pipeline is no secret to the caller."""
        return self.pipelines is None or pipeline in self.pipelines


ANYBODY = Caller()
"""Who comes without a key where none is required."""


class Keyring:
    """Knows the keys. ``mode`` is the setting ``auth``."""

    def __init__(self, engine: AsyncEngine, schema: str, mode: str) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._sql = Statements(__package__ or "", schema)
        self._mode = mode
        self._are_any: bool | None = None
        """Whether there ever was a key; ``None`` before the first look. Once true, true: keys do not become optional
        because a table was emptied, or a backup from before restored."""
        self._known: Mapping[str, tuple[bytes, Caller]] = {}
        self._used: set[str] = set()
        self._noted: dict[str, float] = {}
        self._looked_at = float("-inf")
        self._look: asyncio.Task[None] | None = None
        self._looks: set[asyncio.Task[None]] = set()
        self._loading = asyncio.Lock()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Look again and again, until ``stop``. While Postgres is away what was known holds."""
        if self._mode == "off":
            return
        while not self._stopping.is_set():
            try:
                await self._load()
            except Exception as error:
                if is_unavailable(error):
                    log.debug("loading the keys pauses: %s", first_line(error))
                else:
                    log.exception("the keys cannot be loaded: a revocation is not heard")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL):
                    await self._stopping.wait()

    @property
    def is_needed(self) -> bool:
        """True if a request needs a key, as far as is known."""
        return self._mode == "required" or (self._mode == "auto" and bool(self._are_any))

    def stop(self) -> None:
        """End ``run`` after this look."""
        self._stopping.set()

    async def find(self, key: str | None) -> Caller | None:
        """Who calls with this key; ``None`` if it is none that is good, and one is required.

        Raises a ``Problem`` with 503 if nobody can know, since Postgres is away.
        """
        if self._mode == "off":
            return ANYBODY
        parsed = parse(key or "")
        # Also where none is required yet: who brings one shows that it has just become so.
        if self._are_any is None or (parsed and parsed[0] not in self._known):
            await self._look_anew()
        if self._mode == "auto" and not self._are_any:
            return ANYBODY
        if parsed is None:
            return None
        key_id, digest = parsed
        known, caller = self._known.get(key_id, (_NO_DIGEST, None))
        # Compared also with the digest of nobody's key, so that the time it takes does not tell which ids there are.
        if not hmac.compare_digest(digest, known) or caller is None:
            return None
        self._note_use(key_id)
        return caller

    async def _look_anew(self) -> None:
        """Return after a look that begins after now. Raises a ``Problem`` with 503."""
        if self._look is None:
            self._look = asyncio.create_task(self._look_soon())
            self._looks.add(self._look)
            self._look.add_done_callback(self._forget)
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.shield(self._look)
        except Exception as error:
            raise as_problem(error) from error

    async def _look_soon(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._looked_at + SPACING - loop.time()))
        # Whoever comes from now on may have a key that this look does not see.
        self._look = None
        await self._load()

    def _forget(self, look: asyncio.Task[None]) -> None:
        self._looks.discard(look)
        if not look.cancelled():
            look.exception()  # seen: those who waited may all have gone

    async def _load(self) -> None:
        # One after the other: what was seen first must not come last, or a key that is new would be forgotten again.
        async with self._loading:
            self._looked_at = asyncio.get_running_loop().time()
            used, self._used = self._used, set()
            try:
                async with self._engine.connect() as connection:
                    rows = (await connection.exec_driver_sql(self._sql["api_keys"])).all()
                    if used:
                        await connection.exec_driver_sql(self._sql["note_use"], {"key_id": list(used)})
            except BaseException:
                self._used |= used
                raise
            self._are_any = bool(self._are_any) or rows[0].are_any
            callers = [(row, _caller(row)) for row in rows if row.key_id]
            self._known = {row.key_id: (bytes(row.digest), caller) for row, caller in callers if caller}
            self._noted = {key_id: moment for key_id, moment in self._noted.items() if key_id in self._known}

    def _note_use(self, key_id: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._noted.get(key_id, float("-inf")) > COARSE:
            self._noted[key_id] = now
            self._used.add(key_id)


def _caller(row: Any) -> Caller | None:
    try:
        rate = None if row.rate is None else rate_of(row.rate, row.burst)
    except DeclarationError as error:
        # Somebody wrote it into the table by hand. Without its rate it would be more than was meant.
        log.error("the key %s is refused: %s", row.key_id, error)
        return None
    pipelines = None if row.pipelines is None else frozenset(row.pipelines)
    return Caller(row.key_id, row.name, frozenset(row.scopes), pipelines, rate)
