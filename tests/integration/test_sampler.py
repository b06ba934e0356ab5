"""What the relay that works finds when it looks how much there is: the gauges."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from postroad import Retry, Settings
from postroad.core import metrics
from postroad.core.database import connect_psycopg
from postroad.core.metrics import LEVELS
from postroad.outbox.audit import INVARIANTS
from postroad.outbox.marker import Marker
from postroad.outbox.ticks import Ticks
from postroad.relay import sampler as sampler_module
from postroad.relay.sampler import OURS, Sampler
from tests.integration.road import TRAVEL, Road, die

Connection = psycopg.AsyncConnection[Any]


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    LEVELS.clear()
    yield
    LEVELS.clear()


@pytest.fixture
async def connection(settings: Settings) -> AsyncIterator[Connection]:
    async with await connect_psycopg(settings, application="postroad sampler") as opened:
        yield opened


def level(name: str, **labels: str) -> float:
    """The one value that is shown under these labels."""
    (value,) = (value for value, found in LEVELS.read(name) if dict(found) == labels)
    return value


async def mark(connection: Connection, settings: Settings) -> Marker:
    """The marker of a relay that is through with everything until now."""
    tick = await Ticks(connection, settings.schema).make()
    assert tick is not None
    return Marker(tick.tick, None)


async def test_depth_age_and_letters_of_each_stage_are_shown(
    road: Road, settings: Settings, connection: Connection
) -> None:
    for _ in range(3):
        await road.accept()
    await road.commit(await road.accept(), "pack")
    await road.commit(await road.accept(), "pack", Retry("later"))
    await die(road, "ride")
    await road.ask("update postroad.task set created_at = created_at - interval '1 hour'")
    await road.ask(
        "update postroad.stage set paused = stage = 'rest', resting_until = case stage when 'ride' then now() end"
    )

    await Sampler(settings, lambda: [None]).look(connection)

    pack, ride, rest = ({"pipeline": TRAVEL.name, "stage": stage} for stage in ("pack", "ride", "rest"))
    assert level("postroad.stage.depth", **pack, state="ready") == 3
    assert level("postroad.stage.depth", **pack, state="retrying") == 1
    assert level("postroad.stage.depth", **ride, state="ready") == 1
    assert level("postroad.stage.depth", **rest, state="ready") == 1, "the failed task is not among the open ones"
    assert level("postroad.stage.oldest.ready.age", **pack) >= 3600
    assert level("postroad.stage.oldest.ready.age", **ride) < 3600, "since the stage before it was done"
    assert level("postroad.dead.letters", **ride) == 1
    assert level("postroad.dead.letters", **pack) == 0
    assert level("postroad.dead.letters.oldest.age", **ride) > 0
    assert (level("postroad.stage.paused", **rest), level("postroad.stage.paused", **ride)) == (1, 0)
    assert (level("postroad.breaker.open", **rest), level("postroad.breaker.open", **ride)) == (0, 1)


async def test_what_is_not_published_is_counted_up_to_a_limit(
    road: Road, settings: Settings, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await road.accept()
    through = await mark(connection, settings)
    sampler = Sampler(settings, lambda: [through])
    await sampler.look(connection)
    assert (level("postroad.outbox.unpublished"), level("postroad.outbox.oldest.age")) == (0, 0)

    for _ in range(3):
        await road.accept()
    await sampler.look(connection)
    assert level("postroad.outbox.unpublished") == 3
    assert level("postroad.outbox.oldest.age") > 0

    # A tick that nobody has published is no progress; and counting ends somewhere.
    await mark(connection, settings)
    monkeypatch.setattr(sampler_module, "MOST", 2)
    await sampler.look(connection)
    assert level("postroad.outbox.unpublished") == 2
    assert level("postroad.outbox.oldest.age") > 0


async def test_while_a_shard_is_away_what_was_known_of_it_counts(
    road: Road, settings: Settings, connection: Connection
) -> None:
    markers: list[Marker | None] = [None]
    sampler = Sampler(settings, lambda: markers)
    await sampler.look(connection)
    assert not LEVELS.read("postroad.outbox.unpublished"), "nobody knows"

    markers[:] = [await mark(connection, settings)]
    await sampler.look(connection)
    markers[:] = [None]
    await road.accept()
    await sampler.look(connection)

    assert level("postroad.outbox.unpublished") == 1


async def test_each_invariant_has_its_turn_and_a_violation_is_shown(
    road: Road, settings: Settings, connection: Connection
) -> None:
    task_id = await road.accept()
    await road.ask("update postroad.task set version = version + 1 where task_id = :id", id=task_id)
    sampler = Sampler(settings, lambda: [None])

    for _ in INVARIANTS:
        await sampler.look(connection)

    shown = {dict(labels)["invariant"]: value for value, labels in LEVELS.read("postroad.audit.violations")}
    assert shown.keys() == INVARIANTS.keys()
    assert {name for name, value in shown.items() if value} == {"writes_differ_from_version"}


async def test_what_takes_too_long_is_left_out_and_not_repeated(
    road: Road, settings: Settings, connection: Connection
) -> None:
    await road.accept()
    sampler = Sampler(settings, lambda: [None])
    for _ in INVARIANTS:
        await sampler.look(connection)

    # Whoever holds the tables makes every statement wait, until it is too late.
    async with road.engine.begin() as holding:
        await holding.exec_driver_sql("lock table postroad.task, postroad.outbox, postroad.dead_letter")
        await connection.execute("set statement_timeout = '50ms'")
        for _ in INVARIANTS:
            await sampler.look(connection)

    assert not LEVELS.read("postroad.stage.depth")
    assert not LEVELS.read("postroad.audit.violations")
    await sampler.look(connection)
    assert LEVELS.read("postroad.stage.depth"), "and shown again once it can be found out"


async def test_unless_somebody_collects_metrics_nobody_looks(settings: Settings) -> None:
    assert not metrics.is_on()

    await Sampler(settings, lambda: [None]).run()

    assert not any(LEVELS.read(name) for name in OURS)
