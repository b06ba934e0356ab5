"""A master that sentinels replace: whatever the new one has not heard of, nothing is lost and nothing done twice."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from postroad.core.broker import Keys
from postroad.core.settings import Settings
from tests.acceptance.deployed import deployed
from tests.acceptance.deployment import Deployment, wait_until
from tests.faults.redis_topologies import (
    SECONDS_TO_HEAL,
    Node,
    Watched,
    await_progress,
    check_effects,
    lagging,
    submit,
    tell,
)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """Running servers and sentinels."""
    with Watched(tmp_path / "redis").running() as watched:
        yield watched


@pytest.fixture
def deployment(watched: Watched, settings: Settings, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment that knows the sentinels; nothing runs yet."""
    with deployed(replace(settings, redis_url=watched.url), tmp_path) as deployment:
        yield deployment


@pytest.mark.timeout(180)
def test_a_master_that_dies_under_load_is_replaced(deployment: Deployment, watched: Watched) -> None:
    deployment.start()
    tasks = submit(deployment)
    await_progress(deployment)

    old = watched.master
    began = time.monotonic()
    old.kill()
    tasks += submit(deployment)
    watched.await_failover(old)
    tell("seconds to the new master", began)
    await_progress(deployment)
    tell("seconds until work goes on", began)
    tasks += submit(deployment)

    assert deployment.wait_until_finished(tasks, seconds=SECONDS_TO_HEAL) == {"completed": tasks}
    check_effects(deployment, tasks)


@pytest.mark.timeout(180)
def test_what_the_new_master_never_heard_of_is_published_and_done_again(
    deployment: Deployment, watched: Watched, tmp_path: Path
) -> None:
    deployment.start()
    flag = str(tmp_path / "flag")
    tasks = submit(deployment)
    await_progress(deployment)

    old, replicas = watched.master, watched.replicas
    marker = Keys(deployment.settings.prefix).marker(0)
    with lagging(replicas):
        # Lost: entries, outcomes that were acknowledged, and attempts that were parked.
        tasks += len(deployment.submit("hazard", {"do": "retry once"}, {"do": "snooze once", "flag": flag}))
        tasks += submit(deployment)
        await_progress(deployment, 20)
        assert old.ask("GET", marker) not in [one.ask("GET", marker) for one in replicas]
        began = time.monotonic()
        old.kill()
        watched.await_failover(old)
    tasks += submit(deployment)

    assert deployment.wait_until_finished(tasks, seconds=SECONDS_TO_HEAL) == {"completed": tasks}
    tell("seconds until all is done", began)
    check_effects(deployment, tasks - 2)


def restart(old: Node) -> None:
    """Bring back a master that died: it takes itself for the master, and has forgotten all."""
    old.start()


def wake(old: Node) -> None:
    """Bring back a master that hung: it takes itself for the master, and has not noticed anything."""
    old.resume()


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("harm", "bring_back"), [(Node.kill, restart), (Node.pause, wake)])
def test_an_old_master_that_comes_back_is_left_alone(
    deployment: Deployment,
    watched: Watched,
    harm: Callable[[Node], None],
    bring_back: Callable[[Node], None],
) -> None:
    deployment.start()
    tasks = submit(deployment)
    await_progress(deployment)

    old = watched.master
    began = time.monotonic()
    harm(old)
    watched.await_failover(old)
    await_progress(deployment)
    tell("seconds until work goes on", began)
    tasks += submit(deployment)
    bring_back(old)
    tasks += submit(deployment)
    wait_until(lambda: old.is_replica, "the old master follows the new one")
    tasks += submit(deployment)
    wait_until(lambda: not old.foreign_clients, "nobody talks to the old master")

    assert deployment.wait_until_finished(tasks, seconds=SECONDS_TO_HEAL) == {"completed": tasks}
    check_effects(deployment, tasks)
