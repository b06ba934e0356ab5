"""A Redis Cluster: a master that dies is replaced, and what is in the shards of others does not notice."""

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
    BATCH,
    SECONDS_TO_HEAL,
    Cluster,
    Node,
    await_progress,
    check_effects,
    lagging,
    submit,
    tell,
)

SHARDS = 4


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Running nodes."""
    with Cluster(tmp_path / "redis").running() as cluster:
        yield cluster


@pytest.fixture
def deployment(cluster: Cluster, settings: Settings, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment that knows two of the nodes; nothing runs yet."""
    with deployed(replace(settings, redis_url=cluster.url, shards=SHARDS), tmp_path) as deployment:
        yield deployment


def marker_for(deployment: Deployment, pipeline: str, stage: str) -> str:
    """The marker of the shard that a stage is in."""
    keys = Keys(deployment.settings.prefix, SHARDS)
    return keys.marker(keys.shard_of(pipeline, stage))


@pytest.mark.timeout(180)
def test_a_master_that_dies_under_load_is_replaced(deployment: Deployment, cluster: Cluster) -> None:
    deployment.start()
    tasks = submit(deployment)
    await_progress(deployment)

    marker = marker_for(deployment, "road", "survey")
    old, _ = cluster.serving(marker)
    began = time.monotonic()
    old.kill()
    tasks += submit(deployment)
    cluster.await_failover(old, marker)
    tell("seconds to the new master", began)
    await_progress(deployment)
    tell("seconds until work goes on", began)
    tasks += submit(deployment)

    assert deployment.wait_until_finished(tasks, seconds=SECONDS_TO_HEAL) == {"completed": tasks}
    check_effects(deployment, tasks)


@pytest.mark.timeout(180)
def test_what_the_new_master_never_heard_of_is_published_and_done_again(
    deployment: Deployment, cluster: Cluster, tmp_path: Path
) -> None:
    deployment.start()
    tasks = submit(deployment)
    await_progress(deployment)

    marker = marker_for(deployment, "road", "survey")
    old, replicas = cluster.serving(marker)
    with lagging(replicas):
        tasks += submit(deployment)
        await_progress(deployment, 20)
        assert old.ask("GET", marker) not in [one.peek(marker) for one in replicas]
        began = time.monotonic()
        old.kill()
        cluster.await_failover(old, marker)
    tasks += submit(deployment)

    assert deployment.wait_until_finished(tasks, seconds=SECONDS_TO_HEAL) == {"completed": tasks}
    tell("seconds until all is done", began)
    check_effects(deployment, tasks)


@pytest.mark.timeout(180)
def test_an_old_master_that_hung_and_comes_back_is_left_alone(deployment: Deployment, cluster: Cluster) -> None:
    deployment.start()
    tasks = submit(deployment)
    await_progress(deployment)

    marker = marker_for(deployment, "road", "survey")
    old, _ = cluster.serving(marker)
    old.pause()
    cluster.await_failover(old, marker)
    await_progress(deployment)
    old.resume()
    tasks += submit(deployment)
    wait_until(lambda: old.is_replica, "the old master follows the new one")
    tasks += submit(deployment)
    wait_until(lambda: not old.foreign_clients, "nobody talks to the old master")

    assert deployment.wait_until_finished(tasks, seconds=SECONDS_TO_HEAL) == {"completed": tasks}
    check_effects(deployment, tasks)


@pytest.mark.timeout(180)
def test_masters_that_change_places_with_their_replicas_are_followed(deployment: Deployment, cluster: Cluster) -> None:
    deployment.start()
    tasks = 0

    for stage in ("survey", "pave"):
        tasks += submit(deployment)
        await_progress(deployment)
        marker = marker_for(deployment, "road", stage)
        old, (replica,) = cluster.serving(marker)
        # No connection breaks: the old master answers, and says that it is somebody else's affair.
        replica.ask("CLUSTER", "FAILOVER")
        cluster.await_failover(old, marker)
        await_progress(deployment)

    assert deployment.wait_until_finished(tasks, seconds=SECONDS_TO_HEAL) == {"completed": tasks}
    check_effects(deployment, tasks)


@pytest.mark.timeout(180)
def test_a_slot_that_moves_to_another_master_is_followed(deployment: Deployment, cluster: Cluster) -> None:
    deployment.start()
    tasks = 0
    marker = marker_for(deployment, "road", "survey")
    home, _ = cluster.serving(marker)
    other, _ = cluster.serving(marker_for(deployment, "road", "pave"))
    assert other is not home

    for target in (other, home):
        tasks += submit(deployment)
        await_progress(deployment)
        cluster.move(marker, target)
        tasks += submit(deployment)
        await_progress(deployment)

    assert deployment.wait_until_finished(tasks, seconds=SECONDS_TO_HEAL) == {"completed": tasks}
    check_effects(deployment, tasks)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("harm", "heal"), [(Node.kill, Node.start), (Node.pause, Node.resume)])
def test_while_a_shard_is_gone_altogether_the_stages_of_others_go_on(
    deployment: Deployment, cluster: Cluster, harm: Callable[[Node], None], heal: Callable[[Node], None]
) -> None:
    deployment.start()
    tasks = submit(deployment)
    await_progress(deployment)
    marker = marker_for(deployment, "road", "survey")
    master, (replica,) = cluster.serving(marker)
    assert cluster.serving(marker_for(deployment, "hazard", "cross"))[0] is not master

    replica.kill()
    harm(master)
    relay, worker = deployment.processes["relay"], deployment.processes["worker"]
    relay.await_line("waiting for Redis at redis+cluster://")
    worker.await_line("pauses: ")
    tasks += submit(deployment)
    began = time.monotonic()
    others = deployment.submit("hazard", *({"do": "retry once"} for _ in range(BATCH)))
    completed = "select count(*) from postroad.task where pipeline = 'hazard' and status = 'completed'"
    wait_until(lambda: deployment.query(completed) == [(len(others),)], "the tasks of the other shard are completed")
    tell("seconds for the others", began)

    heal(master)
    began = time.monotonic()
    tasks += len(others)
    assert deployment.wait_until_finished(tasks, seconds=SECONDS_TO_HEAL) == {"completed": tasks}
    tell("seconds until all is done", began)
    check_effects(deployment, tasks - len(others))
