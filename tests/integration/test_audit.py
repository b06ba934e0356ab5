"""The audit: each invariant is missed when it does not hold, and nothing is when all do."""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from postroad import Event, Reject, Retry, Snooze, append
from postroad.core.outcome import Completed, Outcome
from postroad.intake.dead_letters import Selection, list_dead_letters, requeue
from postroad.outbox.audit import INVARIANTS, audit, journey
from tests.integration.road import Road, pipeline

DETOUR = pipeline("detour", walk=())


@dataclass(frozen=True, slots=True)
class Scene:
    """A road with a task in each state, by the name of the state."""

    road: Road
    tasks: dict[str, UUID]

    async def violated_after(self, statements: list[str]) -> dict[str, int]:
        """What the audit finds after ``statements``, which are taken back then; ``:completed`` is that task's id."""
        async with self.road.engine.connect() as connection:
            for statement in statements:
                names = {name: task_id for name, task_id in self.tasks.items() if f":{name}" in statement}
                assert (await connection.execute(text(statement), names)).rowcount, statement
            findings = await audit(connection, self.road.settings.schema)
            await connection.rollback()
        assert [finding.name for finding in findings] == list(INVARIANTS)
        return {finding.name: finding.violations for finding in findings if finding.violations}


@pytest.fixture
async def scene(road: Road) -> Scene:
    """Tasks in every state that they can be in."""
    await road.deploy(DETOUR)
    names = ("pending", "travelling", "retrying", "snoozed", "completed", "failed", "requeued", "both_dead", "joining")
    tasks = {name: await road.accept(key=name, payload=name) for name in names}
    tasks["detour"] = await road.accept(DETOUR)
    for name in names[1:]:
        await road.commit(tasks[name], "pack")
    outcomes: list[tuple[str, str, Outcome]] = [
        ("retrying", "ride", Retry("no horse")),
        ("snoozed", "rest", Snooze(60)),
        ("failed", "ride", Reject("no road")),
        ("requeued", "ride", Reject("no road")),
        ("both_dead", "ride", Reject("no road")),
        ("both_dead", "rest", Reject("no inn")),
        ("joining", "ride", Completed("1")),
        ("joining", "rest", Completed("1")),
    ]
    for name, stage, outcome in outcomes:
        await road.commit(tasks[name], stage, outcome)
    for stage in ("ride", "rest", "arrive"):
        await road.commit(tasks["completed"], stage)
    async with road.engine.begin() as connection:
        letters = await list_dead_letters(connection, Selection(tasks=[tasks["requeued"]]))
        await requeue(connection, [one["dead_letter_id"] for one in letters], road.settings.schema, by="test")
    return Scene(road, tasks)


VIOLATIONS: dict[str, tuple[list[str], dict[str, int]]] = {
    "completed too early": (
        [
            "update postroad.task set stages_done = '{pack,ride,rest}', version = version - 1"
            " where task_id = :completed",
            "delete from postroad.stage_run where task_id = :completed and stage = 'arrive'",
            "delete from postroad.outbox where task_id = :completed and stage = 'arrive'",
        ],
        {"completed_without_all_stages": 1},
    ),
    "two successes": (
        [
            "insert into postroad.outbox (task_id, pipeline, type, stage)"
            " values (:completed, 'travel', 'StageCompleted', 'pack')",
            "update postroad.task set version = version + 1 where task_id = :completed",
        ],
        {"stage_done_twice": 1},
    ),
    "an event of nobody": (
        ["insert into postroad.outbox (task_id, pipeline, type) values (gen_random_uuid(), 'travel', 'HorseShod')"],
        {"event_without_task": 1},
    ),
    "a task past the door": (
        [
            "insert into postroad.task (task_id, pipeline, payload, trace_id, traceparent)"
            " values (gen_random_uuid(), 'travel', '1', '0', '0')"
        ],
        {"task_without_event": 1, "writes_differ_from_version": 1, "ready_without_event": 1},
    ),
    "done in silence": (
        [
            "delete from postroad.outbox where task_id = :travelling and type = 'StageCompleted'",
            "update postroad.task set version = version - 1 where task_id = :travelling",
        ],
        {"done_without_event": 1, "ready_without_event": 2},
    ),
    "told and not done": (
        [
            "insert into postroad.outbox (task_id, pipeline, type, stage)"
            " values (:pending, 'travel', 'StageCompleted', 'pack')",
            "update postroad.task set version = version + 1 where task_id = :pending",
        ],
        {"done_without_event": 1},
    ),
    "listed and not done": (
        ["update postroad.task set stages_done = '{pack,rest}' where task_id = :travelling"],
        {"stages_done_differ": 1},
    ),
    "done and not listed": (
        ["update postroad.task set stages_done = '{}' where task_id = :travelling"],
        {"stages_done_differ": 1},
    ),
    "listed twice": (
        ["update postroad.task set stages_done = '{pack,pack}' where task_id = :travelling"],
        {"stages_done_differ": 1},
    ),
    "failed though requeued": (
        [
            "update postroad.task set status = 'failed', finished_at = now() where task_id = :requeued",
        ],
        {"failed_without_dead_letter": 1},
    ),
    "open though dead": (
        ["update postroad.task set status = 'in_progress', finished_at = null where task_id = :failed"],
        {"failed_without_dead_letter": 1},
    ),
    "a letter of what is alive": (
        [
            "update postroad.stage_run set status = 'failed', finished_at = null"
            " where task_id = :failed and stage = 'ride'"
        ],
        {"dead_letter_without_run": 1},
    ),
    "dead without a letter": (
        ["delete from postroad.dead_letter where task_id = :both_dead and stage = 'rest'"],
        {"dead_letter_without_run": 1},
    ),
    "dead though requeued": (
        [
            "update postroad.dead_letter set resolved_at = now(), resolution = 'requeued'"
            " where task_id = :both_dead and stage = 'rest'"
        ],
        {"dead_letter_without_run": 1},
    ),
    "nowhere to go": (
        ["delete from postroad.stage where pipeline = 'detour'"],
        {"open_without_next_step": 1},
    ),
    "open at the end": (
        ["update postroad.task set status = 'in_progress', finished_at = null where task_id = :completed"],
        {"open_without_next_step": 1},
    ),
    "a key of nobody": (
        [
            "insert into postroad.intake_key (pipeline, key, request_hash, task_id)"
            " values ('travel', 'x', '', gen_random_uuid())"
        ],
        {"key_without_task": 1},
    ),
    "an attempt in silence": (
        ["update postroad.stage_run set attempts = attempts + 1 where task_id = :retrying and stage = 'ride'"],
        {"attempts_differ_from_events": 1},
    ),
    "attempts after a new beginning": (
        ["update postroad.stage_run set attempts = 1 where task_id = :requeued and stage = 'ride'"],
        {"attempts_differ_from_events": 1},
    ),
    "an effect before its cause": (
        [
            "insert into postroad.outbox (task_id, pipeline, type, stage, data)"
            " select task_id, pipeline, type, stage, data from postroad.outbox"
            "  where task_id = :completed and type = 'StageCompleted' and stage = 'pack'",
            "delete from postroad.outbox as done where task_id = :completed and type = 'StageCompleted'"
            " and stage = 'pack' and exists (select from postroad.outbox as later"
            "                                 where later.task_id = done.task_id and later.stage = 'arrive'"
            "                                   and later.position > done.position)",
        ],
        {"done_before_its_cause": 2},
    ),
    "ready and never asked for": (
        ["delete from postroad.outbox where task_id = :joining and type = 'StageRequested'"],
        {"ready_without_event": 1},
    ),
    "a write in silence": (
        ["update postroad.task set version = version + 1 where task_id = :pending"],
        {"writes_differ_from_version": 1},
    ),
}  # fmt: skip
"""What breaks an invariant, and what the audit finds then."""


async def test_every_violation_is_found_and_only_what_is_broken(scene: Scene, subtests: pytest.Subtests) -> None:
    with subtests.test("nothing is broken"):
        assert await scene.violated_after([]) == {}
    for name, (statements, expected) in VIOLATIONS.items():
        with subtests.test(name):
            assert await scene.violated_after(statements) == expected
    with subtests.test("every invariant has been broken"):
        assert {name for _, expected in VIOLATIONS.values() for name in expected} == set(INVARIANTS)


async def test_of_many_violations_some_of_the_tasks_are_named(road: Road) -> None:
    tasks = {await road.accept() for _ in range(7)}
    await road.ask("update postroad.task set version = 7")

    async with road.engine.connect() as connection:
        findings = await audit(connection, "postroad")

    (found,) = [finding for finding in findings if finding.violations]
    assert (found.name, found.number, found.violations) == ("writes_differ_from_version", 3, 7)
    assert len(set(found.tasks)) == 5
    assert set(found.tasks) < tasks


async def test_every_promise_has_an_invariant_that_tells_if_it_is_broken() -> None:
    promised = (Path(__file__).parents[2] / "docs/guarantees.md").read_text("utf-8")
    promises = promised.partition("## Promises")[2].partition("\n## ")[0]
    told = {
        (int(number), name)
        for number, names in re.findall(r"^\| (\d) \| (.*) \|$", promises, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }

    assert sorted({number for number, _ in told}) == [*map(int, re.findall(r"^(\d)\. ", promises, re.MULTILINE))]
    assert told == {(invariant.number, name) for name, invariant in INVARIANTS.items()}


async def test_what_may_be_is_no_violation(scene: Scene, subtests: pytest.Subtests) -> None:
    may_be = {
        "a dead letter that was discarded": [
            "update postroad.dead_letter set resolved_at = now(), resolution = 'discarded' where task_id = :failed"
        ],
        "a task that was cancelled": [
            "update postroad.task set status = 'cancelled', finished_at = now(), version = version + 1"
            " where task_id = :failed",
            "insert into postroad.outbox (task_id, pipeline, type) values (:failed, 'travel', 'TaskCancelled')",
        ],
        "events of authors": [
            "insert into postroad.outbox (task_id, pipeline, type, stage)"
            " values (:travelling, 'travel', 'HorseShod', 'ride')"
        ],
        "a task whose events were emptied with their partition": [
            "delete from postroad.outbox where task_id = :completed",
            "update postroad.task set created_at = now() - interval '60 days' where task_id = :completed",
            "update postroad.stage_run set started_at = now() - interval '60 days' where task_id = :completed",
        ],
        "a key that outlives a pruned task": [
            "update postroad.task set created_at = now() - interval '90 days' where task_id = :pending",
            "delete from postroad.outbox where task_id = :pending",
            "insert into postroad.intake_key (pipeline, key, request_hash, task_id, created_at)"
            " values ('travel', 'x', '', gen_random_uuid(), now() - interval '60 days')",
        ],
    }
    for name, statements in may_be.items():
        with subtests.test(name):
            assert await scene.violated_after(statements) == {}


async def test_a_task_that_completed_by_the_graph_of_its_time_is_complete(scene: Scene) -> None:
    await scene.road.deploy(
        pipeline("travel", pack=(), ride="pack", rest="pack", arrive=("ride", "rest"), unpack="arrive")
    )

    assert await scene.road.violated() == {}


async def test_a_task_that_completes_too_early_by_a_changed_graph_is_missed(scene: Scene) -> None:
    await scene.road.deploy(
        pipeline("travel", pack=(), ride="pack", rest="pack", arrive=("ride", "rest"), unpack="arrive")
    )

    statements = ["update postroad.task set finished_at = now() + interval '1 hour' where task_id = :completed"]
    assert await scene.violated_after(statements) == {"completed_without_all_stages": 1}


async def test_an_audit_while_work_goes_on_finds_nothing(road: Road) -> None:
    draw = Random(7)
    is_over = asyncio.Event()

    async def travel() -> None:
        while not is_over.is_set():
            task_id = await road.accept(key=str(uuid4()))
            for stage in ("pack", *draw.sample(["ride", "rest"], 2), "arrive"):
                if draw.random() < 0.2:
                    await road.commit(task_id, stage, Retry("again"))
                if draw.random() < 0.1:
                    await road.commit(task_id, stage, Reject("no road"))
                    async with road.engine.begin() as connection:
                        letters = await list_dead_letters(connection, Selection(tasks=[task_id]))
                        ids = [one["dead_letter_id"] for one in letters]
                        await requeue(connection, ids, road.settings.schema, by="test")
                await road.commit(task_id, stage)

    travellers = [asyncio.create_task(travel()) for _ in range(6)]
    try:
        found = [await road.violated() for _ in range(20)]
    finally:
        is_over.set()
        await asyncio.gather(*travellers)

    assert found == [{}] * 20
    assert await road.violated() == {}
    ((done,),) = await road.ask("select count(*) from postroad.task where status = 'completed'")
    assert done > 0


async def test_a_journey_is_in_order_and_can_be_followed_from_any_step(road: Road) -> None:
    task_id, other = await road.accept(), await road.accept()
    await road.commit(task_id, "pack")
    await road.commit(other, "pack")
    async with road.engine.begin() as connection:
        await append(connection, Event("HorseShod", task_id, "travel", "ride", {"shoes": 4}))
    await road.commit(task_id, "ride", Retry("no road", after=0))

    async with road.engine.connect() as connection:
        steps = await journey(connection, task_id, road.settings.schema)
        rest = await journey(connection, task_id, road.settings.schema, after=steps[1].position)
        nobody = await journey(connection, uuid4(), road.settings.schema)

    assert [(step.type, step.stage) for step in steps] == [
        ("TaskCreated", None),
        ("StageCompleted", "pack"),
        ("HorseShod", "ride"),
        ("StageFailed", "ride"),
    ]
    assert [step.position for step in steps] == sorted(step.position for step in steps)
    assert [step.occurred_at for step in steps] == sorted(step.occurred_at for step in steps)
    assert (steps[2].data, steps[3].data["reason"]) == ({"shoes": 4}, "no road")
    assert steps[0].traceparent == steps[1].traceparent
    assert steps[2].traceparent is None
    assert rest == steps[2:]
    assert list(nobody) == []
