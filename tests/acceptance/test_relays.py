"""Two relays: one works, the other takes over."""

from functools import partial

from tests.acceptance.deployment import Deployment, wait_until


def has_grown(deployment: Deployment, finished: int) -> bool:
    """Whether more tasks are terminal than there were."""
    return deployment.finished() > finished


def test_when_the_working_relay_is_killed_the_other_takes_over_and_no_stage_runs_twice(deployment: Deployment) -> None:
    deployment.start()
    second = deployment.relay("second")
    assert "another relay works" in second.log
    turns = (("relay", "second"), ("second", "relay"), ("relay", "second"))
    submitted = 100 * len(turns)

    for working, waiting in turns:
        before = deployment.finished()
        deployment.submit("road", *({"length": number} for number in range(60)))
        wait_until(partial(has_grown, deployment, before), "tasks are on their way")
        deployment.processes[working].kill()
        deployment.processes[waiting].await_line("relaying from", seconds=10)
        deployment.submit("road", *({"length": number} for number in range(40)))
        deployment.processes[working].start()
        deployment.processes[working].await_line("another relay works")

    assert deployment.wait_until_finished(submitted) == {"completed": submitted}
    effects = deployment.query("select stage, count(*), count(distinct task_id) from effect group by stage")
    assert sorted(effects) == [("finish", submitted, submitted), ("survey", submitted, submitted)]
    deployment.audit()
