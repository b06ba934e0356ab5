"""What will not be retried by itself waits for a person, who asks for it again."""

import json
from pathlib import Path

from tests.acceptance.deployment import Deployment


def test_dead_letters_are_requeued_once_their_cause_is_gone_and_their_tasks_complete(
    deployment: Deployment, tmp_path: Path
) -> None:
    deployment.start("hazard.cross")
    flag = tmp_path / "the bridge is open"
    closed = deployment.submit("hazard", *({"do": "reject without", "flag": str(flag)} for _ in range(3)))
    broken = deployment.submit("hazard", *({"do": "fail"} for _ in range(2)))
    deployment.submit("hazard", {})

    assert deployment.wait_until_finished(6) == {"completed": 1, "failed": 5}
    listed = deployment.run("dead", "list", "--pipeline", "hazard", "--json")
    letters = {letter["task_id"]: letter for letter in json.loads(listed.out)}
    assert letters.keys() == {*closed, *broken}
    assert {(letters[task]["reason"], letters[task]["attempts"]) for task in closed} == {("the bridge is closed", 1)}
    # Two retries after the first attempt; the ids in the reasons differ, what went wrong does not.
    assert {letters[task]["reason"] for task in broken} == {
        f"OSError: the bridge at {task} is broken" for task in broken
    }
    assert {letters[task]["attempts"] for task in broken} == {3}
    assert len({letters[task]["fingerprint"] for task in broken}) == 1
    assert "Traceback" in letters[broken[0]]["error"]
    deployment.audit()

    fingerprint = letters[closed[0]]["fingerprint"]
    tried = deployment.run("dead", "requeue", "--fingerprint", fingerprint, "--dry-run")
    assert (tried.code, tried.err) == (0, "3 dead letters would be requeued\n")
    assert deployment.statuses() == {"completed": 1, "failed": 5}

    # Too early: they die again.
    assert deployment.run("dead", "requeue", closed[0]).code == 0
    deployment.wait_until_finished(6)
    assert deployment.statuses() == {"completed": 1, "failed": 5}

    flag.touch()
    requeued = deployment.run(
        "dead", "requeue", "--fingerprint", fingerprint, "--by", "the ferryman", "--reason", "it is open"
    )
    assert (requeued.code, requeued.err) == (0, "3 dead letters requeued\n")
    assert deployment.wait_until_finished(6) == {"completed": 4, "failed": 2}

    journeys = [deployment.get(f"/v1/tasks/{task}/events").json()["events"] for task in closed]
    for journey in journeys:
        assert [event["type"] for event in journey if event["type"].startswith("Task")] == [
            "TaskCreated",
            *["TaskFailed"] * sum(event["type"] == "TaskFailed" for event in journey),
            "TaskCompleted",
        ]
        (*_, asked) = (event for event in journey if event["type"] == "StageRequeued:cross")
        assert (asked["data"]["by"], asked["data"]["reason"]) == ("the ferryman", "it is open")
        assert asked["data"]["before"] == {"status": "failed", "attempts": 1, "reason": "the bridge is closed"}
    again = deployment.run("dead", "requeue", str(letters[closed[0]]["dead_letter_id"]))
    assert again.code == 3
    left = deployment.run("dead", "list", "--stage", "cross", "--json")
    assert {letter["task_id"] for letter in json.loads(left.out)} == set(broken)
    deployment.audit()
