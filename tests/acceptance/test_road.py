"""The road itself: tasks go in over HTTP, through real processes, and come out completed."""

from typing import Any

from tests.acceptance.deployment import Deployment, wait_until

STAGES = ("survey", "mark", "pave", "finish")


def test_a_task_travels_from_http_through_fan_out_and_fan_in_to_completed(deployment: Deployment) -> None:
    deployment.start(*(f"road.{stage}" for stage in STAGES))

    answer = deployment.client.post(
        f"{deployment.url}/v1/tasks",
        json={"pipeline": "road", "payload": {"length": 7}, "labels": {"region": "north"}},
        headers={"Idempotency-Key": "via-appia"},
    )
    assert answer.status_code == 202
    assert answer.json()["status"] == "pending"
    location = answer.headers["Location"]
    wait_until(lambda: deployment.get(location).json()["status"] == "completed", "the task is completed")

    task = deployment.get(location).json()
    assert task["labels"] == {"region": "north"}
    assert task["trace_id"] == answer.json()["trace_id"]
    assert task["stage_status"] == "finish_done"
    assert sorted(task["stages_done"]) == sorted(STAGES)
    assert task["retry_count"] == 0
    assert {run["stage"]: (run["status"], run["attempts"], run["result"]) for run in task["stages"]} == {
        "survey": ("done", 1, {"length": 7}),
        "pave": ("done", 1, {"stones": 700}),
        "mark": ("done", 1, {"milestones": 7}),
        "finish": ("done", 1, {"opened": 707}),
    }
    # The relay may have asked for the first stage once more: it creates a stream when it first sees its stage.
    events = [
        event["type"]
        for event in deployment.get(f"{location}/events").json()["events"]
        if event["data"].get("reason") != "no stream"
    ]
    assert events[:2] == ["TaskCreated", "StageCompleted:survey"]
    assert sorted(events[2:4]) == ["StageCompleted:mark", "StageCompleted:pave"]
    assert events[4:] == ["StageRequested:finish", "StageCompleted:finish", "TaskCompleted"]
    replayed = deployment.client.post(
        f"{deployment.url}/v1/tasks",
        json={"pipeline": "road", "payload": {"length": 7}, "labels": {"region": "north"}},
        headers={"Idempotency-Key": "via-appia"},
    )
    assert (replayed.status_code, replayed.json()["task_id"]) == (202, task["task_id"])
    assert replayed.headers["Idempotent-Replayed"] == "true"
    shown = deployment.run("task", "show", task["task_id"])
    assert shown.code == 0
    assert "completed" in shown.out
    deployment.audit()


def test_many_tasks_travel_at_once_and_each_has_its_effects_once(deployment: Deployment) -> None:
    deployment.start()
    payloads: list[dict[str, Any]] = [{"length": number} for number in range(200)]

    tasks = deployment.submit("road", *payloads)

    assert deployment.wait_until_finished(200) == {"completed": 200}
    opened = deployment.query("select task_id::text, result from postroad.stage_run where stage = 'finish'")
    assert dict(opened) == {task: {"opened": number * 101} for number, task in enumerate(tasks)}
    effects = deployment.query("select stage, count(*), count(distinct task_id) from effect group by stage")
    assert sorted(effects) == [("finish", 200, 200), ("survey", 200, 200)]
    deployment.audit()
