"""Cancel, retry, pause, resume and dead letters over HTTP."""

import asyncio
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.integration.door import Door, pointers, problem
from tests.integration.road import Road, die


async def post(door: Door, path: str, **members: Any) -> httpx2.Response:
    """Ask for something; without members, without a body."""
    return await door.client.post(
        path, json={"from" if name == "from_" else name: members[name] for name in members} or None
    )


async def letters(door: Door, query: str = "") -> list[dict[str, Any]]:
    """The dead letters that a query finds."""
    answer = await door.client.get(f"/v1/dead-letters{query}")
    assert answer.status_code == 200, answer.text
    return list(answer.json()["dead_letters"])


async def said(road: Road, type_: str) -> dict[str, Any]:
    """What the one event of this type says of who asked, and why."""
    statement = "select data - 'before' - 'after' from postroad.outbox where type = :type"
    ((data,),) = await road.ask(statement, type=type_)
    return dict(data)


# Tasks


async def test_a_task_is_cancelled_once(door: Door) -> None:
    task_id = await door.road.accept()

    answer = await post(door, f"/v1/tasks/{task_id}/cancel", by="ada", reason="wrong city")
    again = await post(door, f"/v1/tasks/{task_id}/cancel")

    assert (answer.status_code, again.status_code) == (200, 200)
    assert answer.json() == {"task_id": str(task_id), "status": "cancelled", "changed": True}
    assert again.json()["changed"] is False
    assert await door.road.task(task_id, "status") == ("cancelled",)
    assert await said(door.road, "TaskCancelled") == {"by": "ada", "reason": "wrong city"}


async def test_what_has_completed_or_is_unknown_is_not_cancelled(door: Door) -> None:
    task_id = await door.road.accept()
    await door.road.complete(task_id)

    body = problem(await post(door, f"/v1/tasks/{task_id}/cancel"), 409, "refused")
    assert "completed" in body["detail"]
    problem(await post(door, f"/v1/tasks/{uuid4()}/cancel"), 404, "not-found")
    problem(await post(door, "/v1/tasks/tomorrow/cancel"), 404, "not-found")
    assert await door.road.task(task_id, "status") == ("completed",)


async def test_a_request_that_does_not_say_who_asks_is_http(door: Door) -> None:
    await post(door, f"/v1/tasks/{await door.road.accept()}/cancel")
    assert await said(door.road, "TaskCancelled") == {"by": "http"}


async def test_the_dead_stages_of_a_task_run_again(door: Door) -> None:
    task_id, other = await die(door.road, "ride"), await die(door.road, "ride")

    answer = await post(door, f"/v1/tasks/{task_id}/retry", by="ada")

    assert answer.json() == {"task_id": str(task_id), "stages": ["ride"]}
    assert await door.road.task(task_id, "status") == ("in_progress",)
    assert await door.road.task(other, "status") == ("failed",)
    body = problem(await post(door, f"/v1/tasks/{task_id}/retry"), 409, "refused")
    assert "no dead letter" in body["detail"]


async def test_a_stage_runs_again_with_what_comes_after_it(door: Door) -> None:
    task_id = await door.road.accept()
    await door.road.complete(task_id)

    answer = await post(door, f"/v1/tasks/{task_id}/retry", from_="ride", reason="the bridge was out")

    assert answer.json()["stages"] == ["arrive", "ride"]
    assert (await said(door.road, "TaskRetried"))["reason"] == "the bridge was out"
    problem(await post(door, f"/v1/tasks/{task_id}/retry", from_="fly"), 404, "not-found")
    problem(await post(door, f"/v1/tasks/{uuid4()}/retry", from_="ride"), 404, "not-found")


# Stages


async def test_a_stage_is_paused_and_resumed(door: Door) -> None:
    async def is_paused() -> bool:
        return bool((await door.road.ask("select paused from postroad.stage where stage = 'ride'"))[0][0])

    path = "/v1/pipelines/travel/stages/ride"
    expected = {"pipeline": "travel", "stage": "ride"}
    assert (await post(door, f"{path}/pause")).json() == expected | {"paused": True, "changed": True}
    assert await is_paused()
    assert (await post(door, f"{path}/pause")).json() == expected | {"paused": True, "changed": False}
    assert (await post(door, f"{path}/resume")).json() == expected | {"paused": False, "changed": True}
    assert not await is_paused()


async def test_a_stage_that_is_not_there_is_not_paused(door: Door, subtests: pytest.Subtests) -> None:
    for stage in ("travel/stages/fly", "voyage/stages/ride", "travel/stages/%00", "%ff/stages/ride"):
        with subtests.test(stage=stage):
            problem(await post(door, f"/v1/pipelines/{stage}/pause"), 404, "not-found")


# Dead letters


async def test_dead_letters_are_paged_by_links(door: Door) -> None:
    expected = [str(await die(door.road, "ride")) for _ in range(5)]

    seen, url = [], "/v1/dead-letters?limit=2&stage=ride"
    while url:
        answer = await door.client.get(url)
        page = answer.json()["dead_letters"]
        assert 1 <= len(page) <= 2
        seen += [letter["task_id"] for letter in page]
        url = answer.links.get("next", {}).get("url", "")

    assert seen == expected


async def test_dead_letters_are_filtered_and_grouped(door: Door) -> None:
    first, second = await die(door.road, "ride"), await die(door.road, "ride", reason="no horse")
    await die(door.road, "rest")

    one, two, three = await letters(door)
    assert [letter["task_id"] for letter in await letters(door, "?stage=ride")] == [str(first), str(second)]
    assert await letters(door, f"?fingerprint={two['fingerprint']}") == [two]
    assert await letters(door, f"?task_id={first}") == [one]
    assert await letters(door, "?pipeline=voyage") == []
    groups = (await door.client.get("/v1/dead-letters:groups?stage=rest")).json()["groups"]
    assert [(group["letters"], group["reason"]) for group in groups] == [(1, three["reason"])]


async def test_dead_letters_are_requeued_by_what_they_have_in_common(door: Door) -> None:
    tasks = [await die(door.road, "ride") for _ in range(3)]
    other = await die(door.road, "ride", reason="no horse")
    fingerprint = (await letters(door))[0]["fingerprint"]

    dry = await post(door, "/v1/dead-letters:requeue", fingerprint=fingerprint, dry_run=True)
    assert dry.json() == {"matched": 3, "requeued": 0}
    some = await post(door, "/v1/dead-letters:requeue", fingerprint=fingerprint, limit=2, by="ada", reason="new road")
    assert some.json() == {"matched": 3, "requeued": 2}
    rest = await post(door, "/v1/dead-letters:requeue", fingerprint=fingerprint)
    assert rest.json() == {"matched": 1, "requeued": 1}

    assert [(await door.road.task(one, "status"))[0] for one in tasks] == ["in_progress"] * 3
    assert await door.road.task(other, "status") == ("failed",)
    rows = await door.road.ask("select resolved_by, resolution from postroad.dead_letter order by 1")
    assert rows == [("ada", "requeued"), ("ada", "requeued"), ("http", "requeued"), (None, None)]


async def test_dead_letters_are_discarded_by_id_and_by_task(door: Door) -> None:
    one, two, three = [await die(door.road, "ride") for _ in range(3)]
    first = (await letters(door))[0]["dead_letter_id"]

    answer = await post(door, "/v1/dead-letters:discard", ids=[first, first, 2**63 - 1], task_ids=[str(two)])

    assert answer.json() == {"matched": 2, "discarded": 2}
    assert [letter["task_id"] for letter in await letters(door)] == [str(three)]
    assert await door.road.task(one, "status") == ("failed",)
    assert (await post(door, "/v1/dead-letters:discard", all=True)).json() == {"matched": 1, "discarded": 1}


async def test_a_letter_is_requeued_once_by_many_who_ask(door: Door) -> None:
    task_id = await die(door.road, "ride")

    answers = await asyncio.gather(*(post(door, "/v1/dead-letters:requeue", task_ids=[str(task_id)]) for _ in range(8)))

    assert sum(answer.json()["requeued"] for answer in answers) == 1


# What is refused


async def test_a_bad_body_names_its_members_and_changes_nothing(door: Door, subtests: pytest.Subtests) -> None:
    task_id = await die(door.road, "ride")
    cases: list[tuple[str, Any, list[str]]] = [
        (f"/v1/tasks/{task_id}/cancel", {"why": "x"}, ["#/why"]),
        (f"/v1/tasks/{task_id}/cancel", {"by": 7, "reason": ""}, ["#/by", "#/reason"]),
        (f"/v1/tasks/{task_id}/cancel", ["ada"], ["#"]),
        (f"/v1/tasks/{task_id}/retry", {"from": ["ride"]}, ["#/from"]),
        ("/v1/pipelines/travel/stages/ride/pause", {"for": "1h"}, ["#/for"]),
        ("/v1/dead-letters:requeue", {}, ["#"]),
        ("/v1/dead-letters:requeue", {"all": False}, ["#"]),
        ("/v1/dead-letters:requeue", {"all": "yes"}, ["#/all"]),
        ("/v1/dead-letters:requeue", {"ids": [0, True, 2**63]}, ["#/ids"]),
        ("/v1/dead-letters:requeue", {"ids": 5}, ["#/ids"]),
        ("/v1/dead-letters:discard", {"task_ids": ["x"]}, ["#/task_ids"]),
        ("/v1/dead-letters:discard", {"all": True, "limit": 0}, ["#/limit"]),
        ("/v1/dead-letters:discard", {"stage": "x" * 256, "dry_run": 1}, ["#/dry_run", "#/stage"]),
    ]
    for path, body, expected in cases:
        with subtests.test(path=path, body=body):
            answer = await door.client.post(path, json=body)
            assert pointers(problem(answer, 422, "invalid")) == expected
    problem(await door.client.post(f"/v1/tasks/{task_id}/cancel", content=b"{", headers=JSON), 400, "malformed")
    problem(await door.client.post(f"/v1/tasks/{task_id}/cancel", content=b"by=ada"), 415)
    assert await door.road.task(task_id, "status") == ("failed",)
    assert len(await letters(door)) == 1


JSON = {"Content-Type": "application/json"}


async def test_a_bad_query_says_what_is_wrong(door: Door, subtests: pytest.Subtests) -> None:
    for query, word in (
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=%D9%A3", "limit"),
        ("cursor=-1", "cursor"),
        (f"cursor={2**63}", "cursor"),
        ("task_id=x", "task_id"),
        ("stage=%00", "stage"),
        ("stage=a&stage=b", "twice"),
        ("colour=red", "colour"),
    ):
        with subtests.test(query=query):
            body = problem(await door.client.get(f"/v1/dead-letters?{query}"), 400, "malformed")
            assert word in body["detail"]
