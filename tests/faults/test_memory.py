"""Memory of Redis that runs out, with keys evicted or without."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from postroad.core.servers import Valkey
from postroad.core.settings import Settings
from tests.acceptance.deployed import LEASE, deployed
from tests.acceptance.deployment import Deployment, wait_until

TASKS = 80


@pytest.fixture
def deployment(settings: Settings, own_valkey: Valkey, tmp_path: Path) -> Iterator[Deployment]:
    with deployed(replace(settings, redis_url=own_valkey.url), tmp_path, lease=2 * LEASE) as deployment:
        yield deployment


def test_a_redis_that_is_full_is_drained_and_filled_again_when_there_is_room(deployment: Deployment) -> None:
    deployment.start()
    deployment.stage(name="other")
    deployment.submit("road", *({"length": number, "seconds": 0.2} for number in range(TASKS)))
    wait_until(lambda: deployment.finished() > 5, "some are finished")
    with deployment.redis() as client:
        client.config_set("maxmemory", 1)
        before = reached(deployment)
        deployment.submit("road", *({"length": number} for number in range(TASKS)))
        wait_until(lambda: waiting(deployment) == 0, "what had been published is done")
        assert reached(deployment) > before
        wait_until(lambda: "maxmemory" in deployment.processes["relay"].whole_log, "the relay says what it waits for")
        client.config_set("maxmemory", 0)

    assert deployment.wait_until_finished(2 * TASKS, seconds=60) == {"completed": 2 * TASKS}
    # They lived on all the while: nobody took over from them, and no attempt was made twice.
    assert "dead workers" not in deployment.processes["worker"].whole_log + deployment.processes["other"].whole_log
    assert_effects_once(deployment, 2 * TASKS)


def test_keys_that_are_evicted_are_made_again(deployment: Deployment) -> None:
    deployment.start()
    tasks = 0
    with deployment.redis() as client:
        client.config_set("maxmemory-policy", "allkeys-random")
        client.config_set("maxmemory-samples", 1)
        for _ in range(4):
            deployment.submit("road", *({"length": number, "seconds": 0.05} for number in range(TASKS)))
            tasks += TASKS
            wait_until(partial(has_finished_some, deployment, tasks), "some are finished", poll=0.01)
            client.config_set("maxmemory", int(client.info("memory")["used_memory"]) - 1024)
            client.set("straw", "x" * 1024)
            client.config_set("maxmemory", 0)
        evicted = client.info("stats")["evicted_keys"]

    assert deployment.wait_until_finished(tasks, seconds=60) == {"completed": tasks}
    assert evicted > 0
    assert_effects_once(deployment, tasks)


def has_finished_some(deployment: Deployment, tasks: int) -> bool:
    return deployment.finished() > tasks - TASKS


def reached(deployment: Deployment) -> int:
    """How many stages are done."""
    ((count,),) = deployment.query("select count(*) from postroad.stage_run where status = 'done'")
    return int(count)


def waiting(deployment: Deployment) -> int:
    """How many entries are in the streams."""
    stages = ("survey", "pave", "mark", "finish")
    with deployment.redis() as client:
        return sum(int(client.xlen(f"{deployment.settings.prefix}:{{0}}:road.{stage}:stream")) for stage in stages)


def assert_effects_once(deployment: Deployment, tasks: int) -> None:
    effects = deployment.query("select stage, count(*), count(distinct task_id) from effect group by stage")
    assert sorted(effects) == [("finish", tasks, tasks), ("survey", tasks, tasks)]
    deployment.audit()
