"""The views that people and the dashboard look through: what they show of a road with known traffic."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from postroad import Event, Reject, Retry, Snooze, append
from postroad.core.outcome import Handed
from postroad.intake.cancel import cancel
from postroad.intake.dead_letters import Selection, discard, find_dead_letters
from postroad.intake.pause import set_paused
from postroad.intake.retry import retry_from
from tests.integration.road import NOON, Road, attempt, die


async def seen(road: Road, view: str, columns: str, *, where: str = "true", by: str = "1", **named: Any) -> list[Any]:
    """What a view shows."""
    return await road.ask(f"select {columns} from postroad.{view} where {where} order by {by}", **named)  # noqa: S608


async def test_a_journey_has_a_row_for_each_step_with_its_times(road: Road) -> None:
    task_id = await road.accept()
    await attempt(road, task_id, "pack", Retry("torn", after=60), error="Traceback …")
    async with road.engine.begin() as connection:
        # An author's event may have members of the same names, and what it likes in them.
        await append(connection, Event("HorseShod", task_id, "travel", "ride", {"attempt": "x", "started_at": []}))
    await attempt(road, task_id, "pack", at=NOON + timedelta(minutes=1))
    await attempt(road, task_id, "ride", Snooze(30, "night"))
    async with road.engine.begin() as connection:
        await cancel(connection, [task_id], "postroad", by="ada", reason="a storm")

    columns = "event, outcome, attempt, started_at, ended_at, waited, ran, next_at, reason, error, by"
    s, nothing = timedelta(seconds=1), (None,) * 10
    minute = NOON + timedelta(minutes=1)
    assert await seen(road, "task_journey", columns, by="position", where="task_id = :id", id=task_id) == [
        ("TaskCreated", *nothing),
        ("StageFailed:pack", "failed", 1, NOON, NOON + 3 * s, 2 * s, 3 * s, NOON + 63 * s, "torn", "Traceback …", None),
        ("HorseShod:ride", *nothing),
        ("StageCompleted:pack", "done", 2, minute, minute + 3 * s, 2 * s, 3 * s, None, None, None, None),
        ("StageSnoozed:ride", "snoozed", 0, NOON, NOON + 3 * s, 2 * s, 3 * s, NOON + 33 * s, "night", None, None),
        ("TaskCancelled", *nothing[:7], "a storm", None, "ada"),
    ]  # fmt: skip
    assert await seen(road, "task_journey", "distinct ready_at", where="stage = 'ride' and outcome is not null") == [
        (NOON - 2 * s,)
    ]
    ((traceparent,),) = await road.ask("select traceparent from postroad.task")
    created = await seen(road, "task_journey", "trace_id, span_id", where="event = 'TaskCreated'")
    assert created == [(traceparent[3:35], traceparent[36:52])]


async def test_an_attempt_from_before_there_were_times_has_none(road: Road) -> None:
    task_id = await road.accept()
    await road.ask(
        "insert into postroad.outbox (task_id, pipeline, type, stage, data)"
        " values (:id, 'travel', 'StageCompleted', 'pack', '{\"attempt\": 1, \"worker\": \"w\"}')",
        id=task_id,
    )

    columns = "outcome, attempt, worker, started_at, ended_at = occurred_at, waited, ran"
    assert await seen(road, "task_journey", columns, where="stage = 'pack'") == [
        ("done", 1, "w", None, True, None, None)
    ]


async def test_latency_counts_the_attempts_of_the_last_hour_by_stage(road: Road) -> None:
    tasks = [await road.accept() for _ in range(3)]
    await attempt(road, tasks[0], "pack", Retry("torn", after=0))
    for task_id in tasks:
        await attempt(road, task_id, "pack")
    await attempt(road, tasks[0], "ride", Reject("no road"))
    await attempt(road, tasks[1], "ride", Snooze(30))
    await road.ask(
        "update postroad.outbox set occurred_at = now() - interval '61 minutes' where task_id = :id", id=tasks[2]
    )

    wait, run = timedelta(seconds=2), timedelta(seconds=3)
    columns = "stage, attempts, done, failed, dead, wait_p50, wait_p95, wait_p99, run_p50, run_p95, run_p99"
    assert await seen(road, "stage_latency", columns) == [
        ("pack", 3, 2, 1, 0, *[wait] * 3, *[run] * 3),
        ("ride", 1, 0, 0, 1, *[wait] * 3, *[run] * 3),
    ]


async def test_latency_begins_at_the_tick_of_an_hour_ago_and_misses_nothing(road: Road) -> None:
    before, after = await road.accept(), await road.accept()
    await attempt(road, before, "pack")
    await road.ask(
        "insert into postroad.tick (tick, snapshot, system_identifier)"
        " select (extract(epoch from now() - age) * 1000)::bigint, pg_current_snapshot(), system_identifier"
        "   from pg_control_system(), (values (interval '61 minutes'), (interval '59 minutes')) as tick (age)"
    )
    await attempt(road, after, "pack")

    assert await seen(road, "stage_latency", "stage, attempts") == [("pack", 1)]
    await road.ask("delete from postroad.tick where tick > 0 and tick < extract(epoch from now()) * 1000 - 3600000")
    assert await seen(road, "stage_latency", "stage, attempts") == [("pack", 2)]


async def test_dead_letters_and_failures_show_what_nobody_has_resolved(road: Road) -> None:
    tasks = [await die(road, "ride", reason=f"no road {number}") for number in range(3)]
    other, closed = await die(road, "rest", reason="no inn"), await die(road, "ride", reason="no road 7")
    async with road.engine.begin() as connection:
        letters = [letter for letter, _ in await find_dead_letters(connection, Selection(tasks=[closed]))]
        await discard(connection, letters, "postroad", by="ada")

    assert {row[0] for row in await seen(road, "dead_letters", "task_id")} == {*tasks, other}
    assert await seen(road, "dead_letters", "stage, reason, age > '0'", where="task_id = :id", id=other) == [
        ("rest", "no inn", True)
    ]
    assert await seen(road, "failures", "stage, letters, reason, task_id", by="letters desc") == [
        ("ride", 3, "no road 2", tasks[2]),
        ("rest", 1, "no inn", other),
    ]


@dataclass(frozen=True)
class Case:
    """What was done, and the state that a stage is in then."""

    name: str
    stage: str
    state: str
    has_until: bool = False
    attempts: int = 0
    reason: str | None = None
    waits_for: tuple[str, ...] = ()


CASES = [
    Case("fresh", "pack", "ready"),
    Case("fresh", "ride", "blocked", waits_for=("pack",)),
    Case("fresh", "arrive", "blocked", waits_for=("rest", "ride")),
    Case("packed", "ride", "ready"),
    Case("packed", "arrive", "blocked", waits_for=("rest", "ride")),
    Case("retrying", "ride", "retrying", True, 1, "ValueError: no horse"),
    Case("retrying", "rest", "ready"),
    Case("overdue", "ride", "ready", False, 1, "no horse"),
    Case("snoozed", "rest", "retrying", True, 0, "night"),
    Case("handed", "ride", "waiting", True, 1),
    Case("scheduled", "pack", "scheduled", True),
    Case("running", "ride", "running", False, 2, "no horse"),
    Case("forgotten", "ride", "ready", False, 1, "no horse"),
    Case("dead", "ride", "dead", False, 1, "no road"),
    Case("dead", "rest", "ready"),
    Case("dead", "arrive", "blocked", waits_for=("rest", "ride")),
    Case("discarded", "ride", "discarded", False, 1, "no road"),
]


async def test_open_work_has_the_state_of_each_stage_that_is_not_done(road: Road, subtests: pytest.Subtests) -> None:
    names = {case.name for case in CASES}
    tasks = {name: await road.accept() for name in sorted(names | {"completed", "cancelled"})}
    await road.complete(tasks["completed"])
    for name in names - {"fresh", "scheduled"}:
        await road.commit(tasks[name], "pack")
    error = "Traceback (most recent call last):\n  File …\nValueError: no horse\n"
    await attempt(road, tasks["retrying"], "ride", Retry("no horse", after=60), error=error)
    for name in ("overdue", "running", "forgotten"):
        await attempt(road, tasks[name], "ride", Retry("no horse", after=0))
    await attempt(road, tasks["snoozed"], "rest", Snooze(60, "night"))
    await attempt(road, tasks["handed"], "ride", Handed(b"x" * 32, timedelta(hours=1)))
    for name in ("dead", "discarded"):
        await attempt(road, tasks[name], "ride", Reject("no road"))
    async with road.engine.begin() as connection:
        letters = [letter for letter, _ in await find_dead_letters(connection, Selection(tasks=[tasks["discarded"]]))]
        await discard(connection, letters, "postroad", by="ada")
        await cancel(connection, [tasks["cancelled"]], "postroad", by="ada")
    await road.ask(
        "update postroad.task set not_before = now() + interval '1 h' where task_id = :id", id=tasks["scheduled"]
    )
    for process, name, age in (("w1", "running", "1 second"), ("w2", "forgotten", "16 seconds")):
        await road.ask(
            "insert into postroad.process (process, role, host, pid, version, running, started_at, seen_at)"
            " select :process, 'stage', 'h', 1, '0', jsonb_build_array(jsonb_build_object("
            "        'task_id', cast(:id as text), 'stage', 'ride', 'attempt', 2, 'since', '2026-12-01T12:00:00Z')),"
            "        now() - interval '1 day', now() - cast(:age as interval)",
            process=process, id=str(tasks[name]), age=age,
        )  # fmt: skip

    for case in CASES:
        with subtests.test(f"{case.name} {case.stage}"):
            columns = "state, until > now(), attempts, reason, waits_for"
            (row,) = await seen(
                road,
                "open_work",
                columns,
                where="task_id = :id and stage = :stage",
                id=tasks[case.name],
                stage=case.stage,
            )
            assert row == (case.state, case.has_until or None, case.attempts, case.reason, [*case.waits_for])
    (running,) = await seen(road, "open_work", "worker, since", where="state = 'running'")
    assert running == ("w1", NOON)
    ended = [tasks["completed"], tasks["cancelled"]]
    assert await seen(road, "open_work", "count(*)", where="task_id = any (:ids)", ids=ended) == [(0,)]
    assert await seen(road, "open_work", "bool_and(since is not null and since <= now())") == [(True,)]


async def test_a_stage_that_is_paused_or_rests_holds_up_what_is_ready_there(road: Road) -> None:
    task_id = await road.accept()
    await road.commit(task_id, "pack")
    async with road.engine.begin() as connection:
        await set_paused(connection, "travel", "ride", "postroad", paused=True, by="ada")
    await road.ask("update postroad.stage set resting_until = now() + interval '1 h' where stage in ('ride', 'rest')")

    assert await seen(road, "open_work", "stage, state, until > now()") == [
        ("arrive", "blocked", None),
        ("rest", "resting", True),
        ("ride", "paused", None),
    ]


async def test_whatever_people_did_is_in_one_trail(road: Road) -> None:
    cancelled, retried = await road.accept(), await die(road, "ride")
    both = await die(road, "ride", "rest")
    async with road.engine.begin() as connection:
        await set_paused(connection, "travel", "ride", "postroad", paused=True, by="ada", reason="a storm")
    async with road.engine.begin() as connection:
        await cancel(connection, [cancelled], "postroad", by="bob", on_behalf_of="cy")
    async with road.engine.begin() as connection:
        await retry_from(connection, retried, "pack", "postroad", by="ada", reason="a new road")
    async with road.engine.begin() as connection:
        letters = [letter for letter, _ in await find_dead_letters(connection, Selection(tasks=[both]))]
        await discard(connection, letters, "postroad", by="ada")

    columns = "by, on_behalf_of, action, target, task_id, reason, after, operation_id is not null"
    assert await seen(road, "operator_actions", columns, by="at, target") == [
        ("ada", None, "pause", "travel.ride", None, "a storm", {"paused": True}, True),
        ("bob", "cy", "cancel", "travel", cancelled, None, {"status": "cancelled"}, False),
        (
            "ada", None, "retry", "travel.pack", retried, "a new road",
            {"status": "in_progress", "stage_status": "retried_from:pack", "stages_done": []}, False,
        ),
        (
            "ada", None, "discard", "dead letters", None, None,
            {"letters": 2, "stages": ["travel.rest", "travel.ride"]}, True,
        ),
        ("ada", None, "discard", "travel.rest", both, None, {"resolution": "discarded"}, True),
        ("ada", None, "discard", "travel.ride", both, None, {"resolution": "discarded"}, True),
    ]  # fmt: skip


async def test_processes_are_alive_silent_or_stopped(road: Road) -> None:
    await road.ask(
        "insert into postroad.process"
        "       (process, role, host, pid, version, is_leading, running, started_at, seen_at, stopped_at)"
        " select name, 'relay', 'h', 1, '0', true, '[{\"since\": \"2026-12-01T12:00:00Z\"}]',"
        "       now(), now() - age, stopped"
        "   from (values ('a', interval '5 s', null), ('b', '16 s', null), ('c', '5 s', now()))"
        "        as known (name, age, stopped)"
    )

    assert await seen(road, "processes", "process, state, is_leading, running, running_since") == [
        ("a", "alive", True, 1, NOON),
        ("b", "silent", False, 1, NOON),
        ("c", "stopped", False, 1, NOON),
    ]


async def test_every_view_says_what_it_is(road: Road) -> None:
    views = await road.ask(
        "select relname, obj_description(oid, 'pg_class') from pg_class"
        " where relnamespace = 'postroad'::regnamespace and relkind = 'v' order by 1"
    )

    assert [name for name, _ in views] == [
        "dead_letters", "failures", "open_work", "operator_actions", "processes", "stage_latency", "task_journey",
    ]  # fmt: skip
    assert all(said for _, said in views)


@pytest.mark.parametrize("view", ["task_journey", "open_work", "dead_letters", "operator_actions"])
async def test_what_is_asked_of_one_task_reads_no_other(road: Road, view: str) -> None:
    """With sequential scans forbidden there is an index for every table that grows; where they are small none pays."""
    async with road.engine.connect() as connection:
        await connection.exec_driver_sql("set local enable_seqscan = off")
        plan = await connection.exec_driver_sql(
            f"explain select * from postroad.{view} where task_id = '01a231ba-62d0-7fa5-ae57-88bf79d127be'"  # noqa: S608
        )
        lines = [line for (line,) in plan]

    scanned = [line for line in lines if "Seq Scan" in line]
    assert not [
        line for line in scanned if any(f" on {name}" in line for name in ("task", "stage_run", "outbox", "dead"))
    ]
    assert any("task_id = '01a231ba" in line for line in lines if "Index Cond" in line)
