"""Lists of tasks and of pipelines over HTTP: filters, pages, cursors, plans and bounds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection

from postroad.core.outcome import Retry, Snooze
from postroad.intake import listing
from postroad.intake.listing import Filter, list_tasks
from postroad.intake.pipelines import list_pipelines
from tests.integration.door import Door, problem
from tests.integration.road import Road, die, pipeline

MAIL = pipeline("mail", pack=(), send="pack")


async def listed(door: Door, query: str = "") -> list[str]:
    """The ids of all tasks that a query finds, page by page, in their order."""
    found: list[str] = []
    url = f"/v1/tasks?{query}"
    while url:
        answer = await door.client.get(url)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += [task["task_id"] for task in page["tasks"]]
        url = answer.links.get("next", {}).get("url", "")
        assert bool(url) == bool(page["next_cursor"])
    return found


async def submitted(door: Door, **members: Any) -> str:
    """The id of a new task."""
    answer = await door.submit(**members)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["task_id"])


def newest_first(*tasks: UUID | str) -> list[str]:
    """Ids in the order of lists; they were given in that of their making."""
    return [str(task) for task in reversed(tasks)]


# Pages


async def test_pages_show_each_task_once_the_newest_first(door: Door) -> None:
    tasks = [await submitted(door, payload=number) for number in range(7)]

    assert await listed(door, "limit=2") == newest_first(*tasks)
    assert await listed(door, "limit=7") == newest_first(*tasks)
    assert await listed(door) == newest_first(*tasks)


async def test_tasks_of_one_moment_are_paged_too(door: Door, subtests: pytest.Subtests) -> None:
    answers = await door.batch([{"pipeline": "travel", "payload": number} for number in range(25)])
    tasks = sorted((answer["task_id"] for answer in answers), reverse=True)
    assert len({answer["created_at"] for answer in answers}) == 1

    for query in ("", "&pipeline=travel", "&status=pending", "&stage=pack"):
        with subtests.test(query=query):
            assert await listed(door, f"limit=4{query}") == tasks


async def test_what_comes_meanwhile_does_not_shift_the_pages(door: Door) -> None:
    tasks = [await submitted(door) for _ in range(4)]
    first = (await door.client.get("/v1/tasks?limit=2")).json()

    await submitted(door)
    second = (await door.client.get(f"/v1/tasks?limit=2&cursor={first['next_cursor']}")).json()

    assert [task["task_id"] for task in first["tasks"] + second["tasks"]] == newest_first(*tasks)


async def test_a_list_shows_where_tasks_stand_but_not_their_payloads(door: Door) -> None:
    task_id = await submitted(door, labels={"team": "blue"})
    await door.road.commit(UUID(task_id), "pack")

    (shown,) = (await door.client.get("/v1/tasks")).json()["tasks"]

    whole = (await door.client.get(f"/v1/tasks/{task_id}")).json()
    assert shown == {name: value for name, value in whole.items() if name not in ("payload", "stages", "version")}
    assert (shown["stage_status"], shown["labels"]) == ("pack_done", {"team": "blue"})


async def test_a_cursor_fits_its_filter_alone(door: Door, subtests: pytest.Subtests) -> None:
    for _ in range(3):
        await submitted(door, labels={"a": "b"})
    cursor = (await door.client.get("/v1/tasks?limit=1&status=pending")).json()["next_cursor"]

    assert (await door.client.get(f"/v1/tasks?limit=2&status=pending&cursor={cursor}")).status_code == 200
    for query in (
        f"cursor={cursor}",
        f"status=failed&cursor={cursor}",
        f"status=pending&label=a:b&cursor={cursor}",
        f"status=pending&cursor={cursor[:-3]}",
        "cursor=bm9uZQ",
        "cursor=W10",
        "cursor=%C3%A4",
        "cursor=WzEsMSwxLDFd",
    ):
        with subtests.test(query=query):
            assert "cursor" in problem(await door.client.get(f"/v1/tasks?{query}"), 400, "malformed")["detail"]


# Filters


async def test_tasks_are_found_by_what_they_are(door: Door, subtests: pytest.Subtests) -> None:
    await door.road.deploy(MAIL)
    waiting = await submitted(door, labels={"team": "blue", "order": "7"})
    underway = await submitted(door, labels={"team": "blue"})
    await door.road.commit(UUID(underway), "pack")
    done = await submitted(door, labels={"team": "red:hot"})
    await door.road.complete(UUID(done))
    dead = str(await die(door.road, "ride"))
    other = str(await die(door.road, "rest", reason="no inn"))
    mail = await submitted(door, pipeline="mail")
    ((print_,),) = await door.road.ask("select fingerprint from postroad.dead_letter where task_id = :id", id=dead)
    cases: list[tuple[str, list[str]]] = [
        ("status=pending", [mail, waiting]),
        ("status=in_progress", [underway]),
        ("status=completed", [done]),
        ("status=failed", [other, dead]),
        ("status=cancelled", []),
        ("pipeline=mail", [mail]),
        ("pipeline=voyage", []),
        ("pipeline=travel&status=pending", [waiting]),
        ("stage=pack", [mail, waiting]),
        ("stage=pack&pipeline=mail", [mail]),
        ("stage=ride", [other, dead, underway]),
        ("stage=arrive", []),
        ("stage=fly", []),
        ("stage=ride&status=failed", [other, dead]),
        ("label=team:blue", [underway, waiting]),
        ("label=team:blue&label=order:7", [waiting]),
        ("label=team:red:hot", [done]),
        ("label=team:", []),
        ("label=team:blue&label=team:red:hot", []),
        ("label=team:blue&label=team:blue", [underway, waiting]),
        ("label=team:blue&status=in_progress", [underway]),
        (f"fingerprint={print_}", [dead]),
        (f"fingerprint={print_}&pipeline=mail", []),
        (f"fingerprint={print_}&status=completed", []),
        ("fingerprint=000000000000", []),
    ]
    for query, expected in cases:
        with subtests.test(query=query):
            assert await listed(door, f"limit=1&{query}") == expected


async def test_a_stage_shows_what_waits_there_after_an_attempt(door: Door) -> None:
    tasks = [await door.road.accept() for _ in range(2)]
    await door.road.commit(tasks[0], "pack", Retry("no rope", after=600))
    await door.road.commit(tasks[1], "pack", Snooze(600))

    assert await listed(door, "stage=pack") == newest_first(*tasks)


async def test_tasks_are_found_by_when_they_came(door: Door, subtests: pytest.Subtests) -> None:
    first, second, third = [await submitted(door) for _ in range(3)]
    moment = (await door.client.get(f"/v1/tasks/{second}")).json()["created_at"]
    there = moment.replace("+00:00", "%2B00:00")

    for query, expected in (
        (f"created_before={there}", [first]),
        (f"created_after={there}", [third, second]),
        (f"created_after={moment}", [third, second]),  # the + is a space then
        (f"created_after={there}&created_before={there}", []),
        ("created_before=9999-12-31T00:00:00Z", [third, second, first]),
    ):
        with subtests.test(query=query):
            assert await listed(door, query) == expected


async def test_a_task_is_found_by_any_of_its_ids(door: Door, subtests: pytest.Subtests) -> None:
    task_id = await submitted(door, key="order-7", task_id="0190aaaa-0000-7000-8000-000000000001")
    await submitted(door, task_id="0190bbbb-0000-7000-8000-000000000002")
    trace = (await door.client.get(f"/v1/tasks/{task_id}")).json()["trace_id"]

    for q in (task_id, task_id.upper(), task_id[:8], task_id[:14], task_id.replace("-", ""), "order-7", trace):
        with subtests.test(q=q):
            assert await listed(door, f"q={q}") == [task_id]
    for q in ("order-8", str(uuid4()), "0190aaaa0000700080000000000000010", "0190", "%25", "f" * 32):
        with subtests.test(q=q):
            assert await listed(door, f"q={q}") == []
    assert await listed(door, "q=order-7&status=completed") == []
    assert await listed(door, "q=order-7&pipeline=mail") == []


async def test_only_what_the_caller_may_see_is_listed(door: Door, subtests: pytest.Subtests) -> None:
    await door.road.deploy(MAIL)
    travel = await submitted(door, labels={"a": "b"}, key="k")
    mail = await submitted(door, pipeline="mail", labels={"a": "b"}, key="k")
    await die(door.road, "ride")

    for wanted in (
        Filter(pipelines={"mail"}),
        Filter(pipelines={"mail"}, status="pending"),
        Filter(pipelines={"mail"}, stage="pack"),
        Filter(pipelines={"mail"}, labels=[("a", "b")]),
        Filter(pipelines={"mail"}, q="k"),
        Filter(pipelines={"mail"}, q=mail),
    ):
        with subtests.test(wanted=wanted):
            async with door.road.engine.begin() as connection:
                rows, _ = await list_tasks(connection, wanted)
            assert [str(row["task_id"]) for row in rows] == [mail]
    for wanted in (
        Filter(pipelines={"mail"}, q=travel),
        Filter(pipelines={"mail"}, status="failed"),
        Filter(pipelines={"mail"}, pipeline="travel"),
        Filter(pipelines=()),
    ):
        with subtests.test(wanted=wanted):
            async with door.road.engine.begin() as connection:
                assert await list_tasks(connection, wanted) == ([], None)


async def test_a_bad_query_says_what_is_wrong(door: Door, subtests: pytest.Subtests) -> None:
    for query, word in (
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("status=done", "in_progress"),
        ("label=team", "name:value"),
        ("label=te%20am:blue", "name:value"),
        ("&".join(["label=a:1"] * 17), "16 times"),
        ("created_after=yesterday", "RFC 3339"),
        ("created_after=2026-13-01T00:00:00Z", "RFC 3339"),
        ("stage=%00", "stage"),
        ("q=", "q"),
        ("colour=red", "colour"),
        ("status=failed&status=failed", "twice"),
    ):
        with subtests.test(query=query):
            assert word in problem(await door.client.get(f"/v1/tasks?{query}"), 400, "malformed")["detail"]


# Common labels, and many tasks


async def test_a_label_is_found_whether_it_is_common_or_rare(
    door: Door, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr(listing, "GLANCE", 4)
    monkeypatch.setattr(listing, "SOUGHT", 3)
    rare = await submitted(door, labels={"n": "rare"})
    common = [await submitted(door, labels={"n": "common"}) for _ in range(6)]
    new = [await submitted(door) for _ in range(5)]

    for query, expected in (
        ("label=n:rare", [rare]),
        ("label=n:common&limit=2", newest_first(*common)),
        ("label=n:common&limit=100", newest_first(*common)),
        ("label=n:common&pipeline=travel&limit=4", newest_first(*common)),
        ("label=n:none", []),
    ):
        with subtests.test(query=query):
            assert await listed(door, query) == expected
    assert len(new) > listing.GLANCE


@asynccontextmanager
async def explained(road: Road) -> AsyncIterator[tuple[AsyncConnection, list[str]]]:
    """A connection, and the plans of the queries that run over it."""
    plans: list[str] = []
    async with road.engine.begin() as connection:
        sync = connection.sync_connection
        assert sync is not None

        @event.listens_for(sync, "before_cursor_execute")
        def explain(own: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            if "FROM" in statement.upper() and "set_config" not in statement:
                with own.connection.cursor() as other:
                    other.execute(f"explain (costs off) {statement}", parameters)
                    plans.append("\n".join(line for (line,) in other.fetchall()))

        yield connection, plans


MANY = """
insert into postroad.task
       (task_id, pipeline, payload, labels, status, trace_id, traceparent, created_at, finished_at)
select postroad.new_task_id(), case when i % 1000 = 0 then 'mail' else 'travel' end, '1',
       case when i % 2 = 0 then jsonb_build_object('n', i::text) else '{}' end, status, '', '',
       now() - i * interval '1 s', case when status in ('completed', 'failed', 'cancelled') then now() end
  from (select i, case when i % 500 = 1 then 'failed' when i % 700 = 0 then 'pending' else 'completed' end as status
          from generate_series(1, 20000) as i) as made
"""


async def test_every_list_goes_along_an_index(road: Road, subtests: pytest.Subtests) -> None:
    await road.deploy(MAIL)
    await road.ask(MANY)
    keyed = await road.accept(key="order-7")
    died = await die(road, "ride")
    ((print_,),) = await road.ask("select fingerprint from postroad.dead_letter")
    await road.ask("analyze")

    for wanted, index in (
        (Filter(), "task_created_at"),
        (Filter(pipeline="mail"), "task_pipeline"),
        (Filter(pipelines=["mail"]), "task_pipeline"),
        (Filter(status="completed"), "task_pipeline"),
        (Filter(status="failed"), "task_failed_or_cancelled"),
        (Filter(status="cancelled", pipeline="mail"), "task_failed_or_cancelled"),
        (Filter(status="pending"), "task_unfinished"),
        (Filter(stage="pack"), "task_unfinished"),
        (Filter(labels=[("n", "6")]), "task_labels"),
        (Filter(fingerprint=print_), "dead_letter_"),
        (Filter(q="order-7"), "intake_key_pkey"),
        (Filter(q=str(keyed)), "task_pkey"),
        (Filter(q=str(died)[:23]), "task_pkey"),
    ):
        with subtests.test(wanted=wanted):
            async with explained(road) as (connection, plans):
                rows, _ = await list_tasks(connection, wanted)
            assert rows or wanted.status == "cancelled"
            assert any(index in plan for plan in plans), plans
            if wanted.labels or wanted.fingerprint or wanted.q:
                assert "task_created_at" not in plans[-1]
            assert not any("Seq Scan on task" in plan for plan in plans), plans


async def test_an_id_that_many_begin_with_is_to_be_told_more_of(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "SOUGHT", 2)
    for number in range(3):
        await submitted(door, task_id=f"0190aaaa-0000-7000-8000-00000000000{number}")

    assert "more of it" in problem(await door.client.get("/v1/tasks?q=0190aaaa"), 503, "too-slow")["detail"]
    assert await listed(door, "q=0190aaaa-0000-7000-8000-000000000001") == ["0190aaaa-0000-7000-8000-000000000001"]


async def test_a_list_that_takes_too_long_says_how_to_ask_for_less(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PATIENCE", 0.1)
    await submitted(door)
    # A row of ours that nobody can read while it is locked away with its table.
    async with door.road.engine.begin() as connection:
        await connection.exec_driver_sql("lock table postroad.task in access exclusive mode")
        answer = await door.client.get("/v1/tasks")

    body = problem(answer, 503, "too-slow")
    assert "ask for less" in body["detail"]
    assert answer.headers["retry-after"]


# Pipelines


async def stages(door: Door) -> dict[str, dict[str, Any]]:
    """The stages of the pipeline ``travel``, by their names."""
    answer = await door.client.get("/v1/pipelines/travel")
    assert answer.status_code == 200, answer.text
    return {stage.pop("stage"): stage for stage in answer.json()["stages"]}


def counts(stage: dict[str, Any]) -> dict[str, int]:
    """What is at a stage, but for what is not."""
    return {name: one["count"] for name, one in stage.items() if isinstance(one, dict) and one["count"]}


async def test_a_pipeline_shows_its_graph_and_what_is_at_each_stage(door: Door) -> None:
    for _ in range(2):
        await door.road.accept()
    tasks = [await door.road.accept() for _ in range(3)]
    for task_id in tasks:
        await door.road.commit(task_id, "pack")
    await door.road.commit(tasks[0], "ride", Retry("no horse", after=600))
    await die(door.road, "rest")
    await submitted(door, not_before="2027-06-01T00:00:00Z")
    await door.client.post("/v1/pipelines/travel/stages/rest/pause")

    shown = await stages(door)

    assert list(shown) == ["pack", "ride", "rest", "arrive"]
    assert {name: counts(stage) for name, stage in shown.items()} == {
        "pack": {"ready": 2, "scheduled": 1},
        "ride": {"ready": 2, "retrying": 1},
        "rest": {"ready": 3, "dead": 1},
        "arrive": {},
    }
    assert shown["arrive"]["after"] == ["ride", "rest"]
    assert [name for name, stage in shown.items() if stage["paused"]] == ["rest"]
    assert shown["arrive"]["oldest_ready_seconds"] is None
    assert 0 <= shown["ride"]["oldest_ready_seconds"] <= shown["pack"]["oldest_ready_seconds"] < 600


async def test_a_stage_is_ready_from_when_the_one_before_was_done(door: Door) -> None:
    task_id = await door.road.accept()
    await door.road.ask("update postroad.task set created_at = now() - interval '1 hour'")
    assert (await stages(door))["pack"]["oldest_ready_seconds"] > 3000

    await door.road.commit(task_id, "pack")

    assert (await stages(door))["ride"]["oldest_ready_seconds"] < 600


async def test_counts_are_capped(door: Door) -> None:
    for _ in range(4):
        await door.road.accept()
    for _ in range(3):
        await die(door.road, "ride")

    async with door.road.engine.begin() as connection:
        (shown,) = await list_pipelines(connection, door.road.settings.schema, most=2)

    by_name = {stage["stage"]: stage for stage in shown["stages"]}
    assert by_name["pack"]["ready"] == {"count": 2, "capped": True}
    assert by_name["ride"]["dead"] == {"count": 2, "capped": True}
    assert by_name["rest"]["dead"] == {"count": 0, "capped": False}


async def test_pipelines_are_listed_and_an_unknown_one_is_404(door: Door) -> None:
    await door.road.deploy(MAIL)

    listed = (await door.client.get("/v1/pipelines")).json()["pipelines"]

    assert [one["pipeline"] for one in listed] == ["mail", "travel"]
    assert (await door.client.get("/v1/pipelines/mail")).json()["stages"] == listed[0]["stages"]
    for name in ("voyage", "%00", "x" * 300):
        problem(await door.client.get(f"/v1/pipelines/{name}"), 404, "not-found")
    async with door.road.engine.begin() as connection:
        assert await list_pipelines(connection, door.road.settings.schema, pipelines=["voyage"]) == []
