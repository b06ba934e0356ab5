"""Two relays: one works, the other takes over."""

from functools import partial

from tests.acceptance.deployment import Deployment, Process, wait_until


def has_grown(deployment: Deployment, finished: int) -> bool:
    """Whether more tasks are terminal than there were."""
    return deployment.finished() > finished


def has_said(process: Process, text: str, since: int) -> bool:
    """Whether ``text`` is in its log, after the first ``since`` characters."""
    return text in process.log[since:]


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


def test_a_relay_that_is_stopped_in_its_tracks_is_replaced_and_does_no_harm_when_it_wakes(
    deployment: Deployment,
) -> None:
    deployment.start()
    deployment.relay("second")
    stream = f"{deployment.settings.prefix}:{{0}}:road.survey:stream"
    with deployment.redis() as client:
        # What is ready at a stage when its stream is made is asked for again, beside the events themselves.
        wait_until(lambda: client.exists(stream), "the streams are there")
    stopped, successor = deployment.processes["relay"], deployment.processes["second"]

    deployment.submit("road", *({"length": number} for number in range(60)))
    wait_until(partial(has_grown, deployment, 0), "tasks are on their way")
    stopped.pause()
    # While it sleeps commits notify it; that is no sign of life.
    deployment.submit("road", *({"length": number} for number in range(20)))
    successor.await_line("the working relay has been silent for ")
    wait_until(partial(has_said, successor, "relaying from", 0), "it is replaced")
    deployment.submit("road", *({"length": number} for number in range(20)))
    heard = len(stopped.log)
    stopped.resume()
    wait_until(partial(has_said, stopped, "another relay works", heard), "it waits for its turn")
    # And takes it when it comes.
    successor.kill()
    deployment.submit("road", *({"length": number} for number in range(20)))
    submitted = 120

    assert deployment.wait_until_finished(submitted) == {"completed": submitted}
    effects = deployment.query("select stage, count(*), count(distinct task_id) from effect group by stage")
    assert sorted(effects) == [("finish", submitted, submitted), ("survey", submitted, submitted)]
    with deployment.redis() as client:
        assert client.xinfo_stream(stream)["entries-added"] == submitted, "an entry was published twice"
    deployment.audit()
