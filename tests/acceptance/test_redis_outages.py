"""Redis holds no truth: whatever it forgets is restored within seconds, and nothing has to be restarted."""

from functools import partial
from pathlib import Path

from postroad.core.servers import Valkey
from tests.acceptance.deployment import Deployment, wait_until

TASKS = 60
SECONDS_TO_HEAL = 20.0
"""Far more than it takes; far less than a person would need."""


def wipe(deployment: Deployment, valkey: Valkey) -> None:
    with deployment.redis() as client:
        client.flushall()


def cut(deployment: Deployment, valkey: Valkey) -> None:
    with deployment.redis() as client:
        for kind in ("normal", "pubsub"):
            client.client_kill_filter(_type=kind, skipme=True)


def restart(deployment: Deployment, valkey: Valkey) -> None:
    valkey.stop()
    valkey.start()


def crash(deployment: Deployment, valkey: Valkey) -> None:
    valkey.kill()
    # Long enough that everybody has noticed.
    deployment.processes["worker"].await_line("pauses: ")
    valkey.start()


def test_a_run_heals_within_seconds_whatever_happens_to_redis(forgetful: Deployment, own_valkey: Valkey) -> None:
    forgetful.start()
    tasks = 0

    for harm in (wipe, cut, restart, crash):
        forgetful.submit("road", *({"length": number, "seconds": 0.3} for number in range(TASKS)))
        tasks += TASKS
        wait_until(partial(is_in_the_middle, forgetful, tasks), "the run is in its middle", poll=0.005)
        harm(forgetful, own_valkey)
        forgetful.submit("road", *({"length": number} for number in range(TASKS)))
        tasks += TASKS
        assert forgetful.wait_until_finished(tasks, seconds=SECONDS_TO_HEAL) == {"completed": tasks}, harm

    effects = forgetful.query("select stage, count(*), count(distinct task_id) from effect group by stage")
    assert sorted(effects) == [("finish", tasks, tasks), ("survey", tasks, tasks)]
    assert all(process.is_running for process in forgetful.processes.values())
    forgetful.audit()


def is_in_the_middle(deployment: Deployment, tasks: int) -> bool:
    """Whether some of the last tasks are terminal, and some not."""
    return tasks - TASKS < deployment.finished() < tasks


def test_an_attempt_that_fails_after_redis_was_wiped_is_tried_again(
    forgetful: Deployment, own_valkey: Valkey, tmp_path: Path
) -> None:
    forgetful.start("hazard.cross")
    gate, folder = tmp_path / "gate", tmp_path / "begun"
    folder.mkdir()
    payload = {"gate": str(gate), "folder": str(folder), "flag": str(tmp_path / "flag")}
    forgetful.submit("hazard", payload | {"do": "retry once"}, payload | {"do": "snooze once"})
    wait_until(lambda: len(list(folder.iterdir())) == 2, "the attempts have begun")

    wipe(forgetful, own_valkey)
    # The stages are asked for again, of the very worker that runs them.
    with forgetful.redis() as client:
        stream = f"{forgetful.settings.prefix}:{{0}}:hazard.cross:stream"
        wait_until(
            lambda: client.exists(stream) and client.xinfo_groups(stream)[0]["entries-read"] == 2,
            "the entries are delivered anew",
        )
    gate.touch()

    assert forgetful.wait_until_finished(2) == {"completed": 2}
    forgetful.audit()
