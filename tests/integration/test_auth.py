"""Keys of the door: who is let in, to what, and what is recorded of who did it."""

import asyncio
import json
import logging
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import event

from postroad import Reject, Settings
from postroad.core.servers import Postgres
from postroad.core.task import new_task_id
from postroad.core.telemetry import continued
from postroad.intake import keyring
from postroad.intake.keyring import ANYBODY, Keyring
from postroad.intake.keys import create, list_keys, revoke
from postroad.intake.submit import Submitter
from postroad.migrations import upgrade
from postroad.outbox.submit import Accepted, Submission
from postroad.testing.traffic import until
from tests.integration.door import Door, line, open_door, problem, raw
from tests.integration.road import TRAVEL, Road, die, open_road, pipeline

OTHER = pipeline("other", begin=())
JSON = {"Content-Type": "application/json"}
NDJSON = {"Content-Type": "application/x-ndjson"}

ENDPOINTS = {
    "submit": [("POST", "/v1/tasks"), ("POST", "/v1/tasks:batch")],
    "read": [
        ("GET", "/v1/tasks/{task}"),
        ("GET", "/v1/tasks/{task}/events"),
        ("GET", "/v1/dead-letters"),
        ("GET", "/v1/dead-letters:groups"),
        ("GET", "/v1/tasks"),
        ("GET", "/v1/pipelines"),
        ("GET", "/v1/pipelines/travel"),
    ],
    "operate": [
        ("POST", "/v1/tasks/{task}/cancel"),
        ("POST", "/v1/tasks/{task}/retry"),
        ("POST", "/v1/pipelines/travel/stages/ride/pause"),
        ("POST", "/v1/pipelines/travel/stages/ride/resume"),
        ("POST", "/v1/dead-letters:requeue"),
        ("POST", "/v1/dead-letters:discard"),
    ],
}
OPEN = [("GET", "/livez"), ("GET", "/readyz"), ("POST", "/v1/leases/unknown:complete")]


@pytest.fixture
async def other(door: Door) -> Door:
    """The door, to a road with two pipelines."""
    await door.road.deploy(OTHER)
    return door


async def count(road: Road, table: str) -> int:
    return int((await road.count(table))[table])


# Who is let in


async def test_without_any_key_whoever_comes_is_let_in(door: Door) -> None:
    assert (await door.submit()).status_code == 202
    assert await door.road.ask("select submitted_by from postroad.task") == [(None,)]


async def test_with_the_first_key_keys_are_required_and_that_one_is_good_at_once(door: Door) -> None:
    assert (await door.submit()).status_code == 202

    header = await door.key("submit")

    assert (await door.post(raw(line()), **header)).status_code == 202
    problem(await door.submit(), 401, "unauthorized")
    assert await door.road.ask("select submitted_by from postroad.task order by 1") == [("key:shop",), (None,)]


async def test_that_keys_are_required_is_heard_also_if_none_has_come(door: Door) -> None:
    await door.key("submit")

    await until(lambda: is_refused(door))


async def is_refused(door: Door) -> bool:
    """True if one without a key is refused."""
    return (await door.submit()).status_code == 401


async def test_all_that_is_wrong_with_a_key_is_refused_in_the_same_words(settings: Settings, road: Road) -> None:
    async with open_door(replace(settings, auth="required")) as client:
        door = Door(client, road)
        good = (await door.key("submit"))["Authorization"]
        expired = (await door.key("submit", expires=timedelta(milliseconds=1)))["Authorization"]
        revoked = (await door.key("submit"))["Authorization"]
        async with road.engine.begin() as connection:
            await revoke(connection, revoked.split("_")[1], by="test")
        wrong = [
            "",
            "Bearer",
            "Bearer ",
            "Bearer prk_",
            good.replace("Bearer", "Basic"),
            good.replace("Bearer ", ""),
            good[:-1],
            good + "0",
            good[:-1] + ("0" if good[-1] != "0" else "1"),
            good.upper(),
            f"Bearer prk_{'0' * 12}_{'0' * 48}",
            f"Bearer {'x' * 9000}",
            expired,
            revoked,
        ]
        said = set()
        for value in wrong:
            answer = await door.post(raw(line()), Authorization=value)
            problem(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"
            said.add(answer.text)
        said.add((await door.submit()).text)
        twice = [("Content-Type", "application/json"), ("Authorization", good), ("Authorization", good)]
        said.add((await client.post("/v1/tasks", content=raw(line()), headers=twice)).text)

        assert len(said) == 1
        assert (await door.post(raw(line()), Authorization=good.replace("Bearer", "bearer"))).status_code == 202
    assert await count(road, "task") == 1


async def test_a_revoked_key_is_refused_within_seconds(door: Door) -> None:
    header, others = await door.key("submit"), await door.key("submit")
    assert (await door.post(raw(line()), **header)).status_code == 202

    async with door.road.engine.begin() as connection:
        assert await revoke(connection, header["Authorization"].split("_")[1], by="test")

    async def is_out() -> bool:
        return (await door.post(raw(line()), **header)).status_code == 401

    await until(is_out)
    assert (await door.post(raw(line()), **others)).status_code == 202


async def test_the_door_stays_shut_when_no_key_is_left(door: Door) -> None:
    header = await door.key("submit")
    await until(lambda: is_refused(door))

    await door.road.ask("delete from postroad.api_key")

    async def is_out() -> bool:
        return (await door.post(raw(line()), **header)).status_code == 401

    await until(is_out)
    problem(await door.submit(), 401)


async def test_what_needs_no_key_is_answered_without(settings: Settings, road: Road) -> None:
    async with open_door(replace(settings, auth="required")) as client:
        answers = [await client.request(method, path) for method, path in OPEN]

    assert [answer.status_code for answer in answers] == [200, 200, 404]


async def test_with_auth_off_keys_mean_nothing(settings: Settings, road: Road) -> None:
    async with open_door(replace(settings, auth="off")) as client:
        door = Door(client, road)
        header = await door.key("read")

        assert (await door.submit()).status_code == 202
        assert (await door.post(raw(line()), **header)).status_code == 202


async def test_the_use_of_a_key_is_noted(door: Door) -> None:
    header = await door.key("submit")
    await door.post(raw(line()), **header)

    async def is_noted() -> bool:
        async with door.road.engine.connect() as connection:
            return (await list_keys(connection))[0]["last_used_at"] is not None

    await until(is_noted)


# What Postgres feels of it


async def test_a_flood_of_bad_keys_is_a_few_looks_into_the_table(road: Road) -> None:
    looks = 0

    def look(*_: Any) -> None:
        nonlocal looks
        looks += 1

    async with road.engine.begin() as connection:
        good, _ = await create(connection, "shop", ["read"], by="test")
    ring = Keyring(road.engine, "postroad", "auto")
    assert (await ring.find(good) or ANYBODY).name == "shop"
    event.listen(road.engine.sync_engine, "before_cursor_execute", look)

    bad = [f"prk_{number:012x}_{number:048x}" for number in range(500)]
    found = await asyncio.gather(*map(ring.find, bad), *(ring.find(good) for _ in range(100)))

    assert found[:500] == [None] * 500
    assert {caller and caller.name for caller in found[500:]} == {"shop"}
    assert 1 <= looks <= 2
    looks = 0
    assert await ring.find(good)
    assert looks == 0, "of a key that is known Postgres is not asked"


async def test_a_key_that_is_known_does_not_need_postgres(
    settings: Settings, own_postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring, "PATIENCE", 0.5)
    settings = replace(settings, database_url=own_postgres.url)
    await asyncio.to_thread(upgrade, own_postgres.url)
    async with open_road(settings, TRAVEL) as road, open_door(settings) as client:
        door = Door(client, road)
        header = await door.key("submit")
        assert (await door.post(raw(line()), **header)).status_code == 202

        await asyncio.to_thread(own_postgres.stop)
        known = await door.post(raw(line()), **header)
        unknown = await door.post(raw(line()), Authorization=f"Bearer prk_{'1' * 12}_{'1' * 48}")

        # Nobody can know whether it is good: that is no reason to call it bad.
        for answer in (known, unknown):
            problem(answer, 503, "unavailable")
            assert answer.headers["retry-after"]


async def test_a_rate_that_is_none_makes_the_key_no_good(road: Road) -> None:
    async with road.engine.begin() as connection:
        key, _ = await create(connection, "shop", ["read"], by="test", rate="10/s")
    await road.ask("update postroad.api_key set rate = 'fast'")

    assert await Keyring(road.engine, "postroad", "auto").find(key) is None


# What for


@pytest.mark.parametrize("scope", ENDPOINTS)
async def test_a_scope_is_good_for_its_endpoints_and_no_others(door: Door, scope: str) -> None:
    header = await door.key(scope)
    task_id = await door.road.accept()

    for needed, endpoints in ENDPOINTS.items():
        for method, path in endpoints:
            headers = header | (NDJSON if path.endswith(":batch") else JSON)
            answer = await door.client.request(
                method, path.format(task=task_id), headers=headers, content=b"{}" if method == "POST" else b""
            )
            if needed == scope:
                assert answer.status_code not in (401, 403), (method, path)
            else:
                body = problem(answer, 403, "forbidden")
                assert body["scope"] == needed
                assert needed in body["detail"]
                assert f'scope="{needed}"' in answer.headers["www-authenticate"]


async def test_a_key_for_some_pipelines_submits_to_no_others(other: Door) -> None:
    header = await other.key("submit", pipelines=["other"])

    for name in ("travel", "nowhere"):
        body = problem(await other.post(raw(line(pipeline=name)), **header), 403, "forbidden")
        assert name in body["detail"]
    answer = await other.post_batch(b"\n".join(raw(line(pipeline=name)) for name in ("travel", "other")), **header)

    assert [json.loads(told)["status"] for told in answer.text.splitlines()] == [403, 202]
    assert await other.road.ask("select pipeline from postroad.task") == [("other",)]


async def test_tasks_of_other_pipelines_are_not_there_for_it(other: Door) -> None:
    header = await other.key("read", "operate", pipelines=["other"])
    theirs, own = await die(other.road, "ride"), await other.road.accept(OTHER)

    for method, path in (*ENDPOINTS["read"][:2], *ENDPOINTS["operate"][:2]):
        hidden = await other.client.request(method, path.format(task=theirs), headers=header)
        missing = await other.client.request(method, path.format(task=uuid4()), headers=header)
        assert problem(hidden, 404, "not-found").keys() == problem(missing, 404, "not-found").keys()
        assert hidden.json()["detail"] == f"there is no task {theirs}"
        assert (await other.client.request(method, path.format(task=own), headers=header)).status_code != 404
    pause = await other.client.post("/v1/pipelines/travel/stages/ride/pause", headers=header)
    assert problem(pause, 404)["detail"] == "there is no stage travel.ride"
    assert await other.road.task(theirs, "status") == ("failed",)
    assert await other.road.ask("select count(*) from postroad.stage where paused") == [(0,)]


async def test_lists_streams_and_pipelines_show_it_its_own_alone(other: Door) -> None:
    road = other.road
    ours, theirs = await road.accept(OTHER), await road.accept()
    header = {"Authorization": (await other.key("read", pipelines=["other"]))["Authorization"]}

    listed = (await other.client.get("/v1/tasks", headers=header)).json()["tasks"]
    asked_for = (await other.client.get("/v1/tasks?pipeline=travel", headers=header)).json()["tasks"]
    by_id = (await other.client.get(f"/v1/tasks?q={theirs}", headers=header)).json()["tasks"]
    graphs = (await other.client.get("/v1/pipelines", headers=header)).json()["pipelines"]

    assert [task["task_id"] for task in listed] == [str(ours)]
    assert asked_for == by_id == []
    assert [graph["pipeline"] for graph in graphs] == ["other"]
    problem(await other.client.get("/v1/pipelines/travel", headers=header), 404, "not-found")
    stream = header | {"Accept": "text/event-stream"}
    problem(await other.client.get(f"/v1/tasks/{theirs}/events", headers=stream), 404, "not-found")
    problem(await other.client.get(f"/v1/tasks/{theirs}?wait=5", headers=header), 404, "not-found")


async def test_who_may_only_submit_is_told_nothing_of_what_becomes_of_it(door: Door) -> None:
    header = await door.key("submit")

    answer = await door.post(raw(line()), **header, Prefer="wait=10")

    assert answer.status_code == 202
    assert "preference-applied" not in answer.headers


async def test_dead_letters_of_other_pipelines_are_not_there_for_it(other: Door) -> None:
    header = await other.key("read", "operate", pipelines=["other"])
    everything = await other.key("read")
    task_id = await die(other.road, "ride")

    async def seen(headers: dict[str, str]) -> tuple[int, int]:
        letters = await other.client.get("/v1/dead-letters", headers=headers)
        groups = await other.client.get("/v1/dead-letters:groups", headers=headers)
        return len(letters.json()["dead_letters"]), len(groups.json()["groups"])

    assert await seen(header) == (0, 0)
    assert await seen(everything) == (1, 1)
    for asked in ({"all": True}, {"task_ids": [str(task_id)]}, {"pipeline": "travel"}):
        for verb, done in (("requeue", "requeued"), ("discard", "discarded")):
            answer = await other.client.post(f"/v1/dead-letters:{verb}", json=asked, headers=header)
            assert answer.json() == {"matched": 0, done: 0}


# Who did it


async def test_a_task_knows_by_which_key_it_came(other: Door) -> None:
    shop, van = await other.key("submit", "read", name="shop"), await other.key("submit", name="van")

    batch = b"\n".join(raw(line()) for _ in range(3))
    one, *_ = await asyncio.gather(
        other.post(raw(line()), **shop), other.post(raw(line()), **van), other.post_batch(batch, **van)
    )

    counted = "select submitted_by, count(*) from postroad.task group by 1 order by 1"
    assert await other.road.ask(counted) == [("key:shop", 1), ("key:van", 4)]
    shown = await other.client.get(one.headers["location"], headers=shop)
    assert shown.json()["submitted_by"] == "key:shop"


async def test_each_of_those_that_share_a_commit_has_its_own(road: Road) -> None:
    who = ["key:b", None, "key:a", None, "key:b"]
    group = [
        Submission(new_task_id(), "travel", "1", json.dumps({"n": str(number)}), continued(None), submitted_by=one)
        for number, one in enumerate(who)
    ]

    answers = await Submitter(road.engine, "postroad")._accept(group)

    assert [answer.task_id for answer in answers if isinstance(answer, Accepted)] == [one.task_id for one in group]
    rows = await road.ask("select submitted_by from postroad.task order by labels ->> 'n'")
    assert [row[0] for row in rows] == who
    xids = await road.ask("select count(distinct xid) from postroad.outbox")
    assert xids == [(1,)]


async def test_operators_are_recorded_by_their_keys_and_what_they_say_beside_it(door: Door) -> None:
    header = await door.key("operate", name="ops")
    cancelled, dead = await door.road.accept(), await die(door.road, "ride")

    async def post(path: str, **members: Any) -> None:
        answer = await door.client.post(path, json=members, headers=header)
        assert answer.status_code == 200, answer.text

    await post(f"/v1/tasks/{cancelled}/cancel", by="ada", reason="wrong city")
    await post(f"/v1/tasks/{dead}/retry", by="ada")
    await door.road.commit(dead, "ride", Reject("no road"))
    await post("/v1/dead-letters:discard", all=True)
    await post(f"/v1/tasks/{dead}/retry", by="ada", **{"from": "pack"})
    await post("/v1/pipelines/travel/stages/ride/pause", by="ada")

    recorded = (
        "select type, data - array['stages', 'before', 'after'] from postroad.outbox"
        " where data ->> 'by' is not null order by position"
    )
    assert await door.road.ask(recorded) == [
        ("TaskCancelled", {"by": "key:ops", "on_behalf_of": "ada", "reason": "wrong city"}),
        ("StageRequeued", {"by": "key:ops", "on_behalf_of": "ada"}),
        ("DeadLetterDiscarded", {"by": "key:ops"}),
        ("TaskRetried", {"by": "key:ops", "on_behalf_of": "ada"}),
    ]
    assert await door.road.ask("select distinct resolved_by from postroad.dead_letter") == [("key:ops",)]
    switched = "select switched_by from postroad.stage where stage = 'ride'"
    assert await door.road.ask(switched) == [("key:ops for ada",)]


# Secrets


async def test_no_secret_is_kept_or_logged(settings: Settings, road: Road, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_door(settings) as client:
        door = Door(client, road)
        header = await door.key("submit", "operate")
        key = header["Authorization"].removeprefix("Bearer ")
        task_id = (await door.post(raw(line()), **header)).json()["task_id"]
        await client.post(f"/v1/tasks/{task_id}/cancel", headers=header)
        for value in (key + "0", f"Basic {key}"):
            await door.post(raw(line()), Authorization=value)
        await door.post(b"{", **header)

    secret = key.split("_")[2]
    assert f"POST /v1/tasks/{task_id}/cancel by key:shop: 200" in caplog.messages
    assert secret not in caplog.text
    (row,) = await road.ask("select api_key::text from postroad.api_key")
    assert secret not in row[0]


async def test_two_keys_have_nothing_in_common(road: Road) -> None:
    async with road.engine.begin() as connection:
        made = [await create(connection, "shop", ["read"], by="test") for _ in range(2)]

    (one, _), (two, _) = made
    assert one.split("_")[1:] != two.split("_")[1:]
    assert len(bytes.fromhex(one.split("_")[2])) * 8 == 192
