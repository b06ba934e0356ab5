"""What a fault can lay its hands on, and how faults are named, chosen and struck."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, LiteralString

import psutil
import psycopg

from postroad.core.broker import Keys, group_name
from postroad.core.servers import Postgres, Valkey
from tests.acceptance.deployment import Deployment, Process
from tests.acceptance.havoc import Bag

from .app import WORKERS
from .load import Load

PAIRS = 0.2
"""How often two faults come at once, for each that comes alone."""

RELAYS = ("relay-1", "relay-2")


class Ended(Exception):
    """The run is over before the fault is."""


class Missed(Exception):
    """There was nothing to strike."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A running deployment with its servers and its load.

    In seconds: ``lease`` is the workers', ``limit`` is how long whatever has not healed is waited for.
    """

    deployment: Deployment
    postgres: Postgres
    valkey: Valkey
    load: Load
    lease: float
    limit: float
    ending: threading.Event = field(default_factory=threading.Event)

    def hold(self, seconds: float) -> None:
        """Let a fault last. Raises ``Ended`` if the run is ended meanwhile: the fault must still be undone."""
        if self.ending.wait(seconds):
            raise Ended

    def until(self, condition: Callable[[], Any], what: str, *, seconds: float) -> Any:
        """The first true value of ``condition()``. Raises ``Missed`` if there is none in time, and ``Ended``."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise Missed(f"not within {seconds:g} s: {what}")
            self.hold(0.02)
        return value

    def query(self, statement: LiteralString, *parameters: Any) -> list[tuple[Any, ...]]:
        """Rows, on a connection of their own. Raises ``psycopg.Error`` while Postgres is away."""
        with psycopg.connect(
            self.deployment.settings.database_url, autocommit=True, connect_timeout=5, application_name="chaos"
        ) as connection:
            return connection.execute(statement, parameters or None).fetchall()

    def workers(self, stage: str | None = None) -> list[Process]:
        """The workers of a stage, or all."""
        names = [name for name, stages in WORKERS.items() if stage is None or stage in stages]
        return [self.deployment.processes[name] for name in names]

    def relays(self) -> list[Process]:
        """Both relays."""
        return [self.deployment.processes[name] for name in RELAYS]

    def leader(self) -> Process:
        """The relay that works: the one at the other end of the session that holds the lock."""
        holds: LiteralString = (
            "select distinct client_port from pg_locks join pg_stat_activity using (pid)"
            " where locktype = 'advisory' and granted and application_name = 'postroad relay'"
        )

        def find() -> Process | None:
            try:
                ports = {port for (port,) in self.query(holds)}
                for relay in self.relays():
                    connections = psutil.Process(relay.pid).net_connections("tcp")
                    if ports & {connection.laddr.port for connection in connections}:
                        return relay
            except (psycopg.Error, psutil.Error):
                pass
            return None

        found = self.until(find, "a relay works", seconds=30)
        assert isinstance(found, Process)
        return found

    def stream(self, stage: str) -> tuple[str, str]:
        """The key of a stage's stream, and its group."""
        return self._keys.stream("parcel", stage), group_name("parcel", stage)

    def due(self, stage: str) -> str:
        """The key of the list of when a stage's retries are due."""
        return self._keys.due("parcel", stage)

    @property
    def marker(self) -> str:
        """The key of the only shard's marker."""
        return self._keys.marker(0)

    @property
    def _keys(self) -> Keys:
        return Keys(self.deployment.settings.prefix)


@dataclass(frozen=True, slots=True)
class Fault:
    """A way to do harm. ``strike`` returns when the harm is over: at once, if it is one moment's."""

    name: str
    place: str
    what: str
    strike: Callable[[Scene, random.Random], None]


FAULTS: dict[str, Fault] = {}
"""All faults by name, in the order of their declaration."""


def fault(place: str, name: str) -> Callable[[Callable[[Scene, random.Random], None]], Fault]:
    """Register a function as the fault ``<place>-<name>``; its docstring says what it does."""

    def register(strike: Callable[[Scene, random.Random], None]) -> Fault:
        made = Fault(f"{place}-{name}", place, (strike.__doc__ or "").strip(), strike)
        FAULTS[made.name] = made
        return made

    return register


@dataclass(frozen=True, slots=True)
class Strike:
    """The next one or two faults, and what their choices of a victim are drawn from."""

    faults: tuple[Fault, ...]
    seed: int


def schedule(seed: int, wanted: Sequence[tuple[Fault, ...]] = ()) -> Iterator[Strike]:
    """The strikes of a run, without end; a function of the arguments alone.

    Every fault comes once, alone, before any comes again. Now and then two come at once, which likewise take turns, of
    different places: neither undoes the other. With ``wanted`` these alone strike, as they are.
    """
    draw = random.Random(seed)
    alone = Bag(wanted or [(fault,) for fault in FAULTS.values()], draw)
    paired = Bag(list(FAULTS.values()), draw)
    while True:
        yield Strike(alone.next(), draw.getrandbits(32))
        if not wanted and draw.random() < PAIRS:
            first = paired.next()
            if second := paired.next_if(partial(_is_elsewhere, first)):
                yield Strike((first, second), draw.getrandbits(32))


def _is_elsewhere(fault: Fault, other: Fault) -> bool:
    return fault.place != other.place
