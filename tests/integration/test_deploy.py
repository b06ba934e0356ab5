"""Deployments: which graph is in force, and that tasks on their way go on by it."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from postroad import Pipeline, Reject, Retry
from postroad.core.errors import DeclarationError, RefusedError
from postroad.intake.cancel import cancel
from postroad.intake.dead_letters import requeue
from postroad.stages.deploy import Deployment, Stranded, deploy, record_if_new
from postroad.stages.ledger import Attempt, Ledger
from tests.integration.road import TRAVEL, Road, pipeline

WITH_TOLL = pipeline("travel", pack=(), toll="pack", ride="pack", rest="pack", arrive=("ride", "rest"))
URGENT_TRAVEL = pipeline(priorities=True, pack=(), ride="pack", rest="pack", arrive=("ride", "rest"))
WITHOUT_REST = pipeline("travel", pack=(), ride="pack", arrive="ride")


async def graph(road: Road, name: str = "travel") -> dict[str, list[str]]:
    """The stages in force, and what they wait for."""
    return dict(await road.ask("select stage, after from postroad.stage where pipeline = :name", name=name))


async def version(road: Road, name: str = "travel") -> int:
    """The version in force."""
    ((number,),) = await road.ask("select version from postroad.pipeline where pipeline = :name", name=name)
    return int(number)


async def requested(road: Road) -> list[tuple[str, str]]:
    """The stages that were asked for, with the reason, in order."""
    rows = await road.ask(
        "select stage, data->>'reason' from postroad.outbox where type = 'StageRequested' order by position"
    )
    return [(stage, reason) for stage, reason in rows]


async def start(road: Road, declared: Pipeline, *stages: str) -> None:
    """What a worker that runs ``stages`` of ``declared`` does at its start."""
    async with road.engine.begin() as connection:
        await record_if_new(connection, declared, list(stages), road.settings.schema)


async def test_a_new_pipeline_is_version_1(road: Road) -> None:
    assert await road.deploy(pipeline("return", pack=(), ride="pack")) == Deployment("return", 1, "new")

    assert await graph(road, "return") == {"pack": [], "ride": ["pack"]}
    ((definition,),) = await road.ask("select definition from postroad.pipeline where pipeline = 'return'")
    assert definition == {
        "stages": [
            {"stage": "pack", "after": [], "retries": 2, "timeout_seconds": 30.0},
            {"stage": "ride", "after": ["pack"], "retries": 2, "timeout_seconds": 30.0},
        ]
    }
    assert await graph(road) == {"pack": [], "ride": ["pack"], "rest": ["pack"], "arrive": ["ride", "rest"]}


async def test_the_same_pipeline_again_is_unchanged(road: Road) -> None:
    before = await road.ask("select * from postroad.pipeline")

    assert await road.deploy() == Deployment("travel", 1, "unchanged")

    assert await road.ask("select * from postroad.pipeline") == before
    assert await requested(road) == []


async def test_a_pipeline_that_cannot_be_is_not_deployed(road: Road) -> None:
    with pytest.raises(DeclarationError):
        await road.deploy(pipeline("travel", pack="arrive", arrive="pack"))

    assert await version(road) == 1


async def test_a_deployment_that_is_rolled_back_has_not_been(road: Road) -> None:
    async with road.engine.connect() as connection:
        assert (await deploy(connection, WITH_TOLL, road.settings.schema)).change == "changed"
        await connection.rollback()

    assert await version(road) == 1
    assert "toll" not in await graph(road)


async def test_a_changed_limit_is_a_new_version_of_the_same_graph(road: Road) -> None:
    patient = Pipeline("travel")
    for stage in TRAVEL.graph().values():
        patient.add(stage.name, stage.handler, after=stage.after, retries=9)
    before = await graph(road)

    assert await road.deploy(patient) == Deployment("travel", 2, "changed")

    assert await graph(road) == before


async def test_an_added_stage_is_asked_for_where_it_is_ready(road: Road) -> None:
    waiting, ready, dead, done = [await road.accept() for _ in range(4)]
    for task_id in (ready, dead, done):
        await road.commit(task_id, "pack")
    await road.commit(dead, "ride", Reject("no road"))
    for stage in ("ride", "rest", "arrive"):
        await road.commit(done, stage)
    asked_before = len(await requested(road))

    assert await road.deploy(WITH_TOLL) == Deployment("travel", 2, "changed")

    assert await graph(road) == {name: list(stage.after) for name, stage in WITH_TOLL.graph().items()}
    asked = [reason for _, reason in (await requested(road))[asked_before:]]
    assert set(asked) == {"deploy"}
    assert "StageRequested:toll" not in await road.events(waiting)
    assert "StageRequested:pack" in await road.events(waiting)
    assert (await road.events(ready))[-3:].count("StageRequested:toll") == 1
    assert sorted((await road.events(dead))[-2:]) == ["StageRequested:rest", "StageRequested:toll"]
    assert (await road.events(done))[-1] == "TaskCompleted"


async def test_a_task_on_its_way_completes_by_the_graph_in_force(road: Road) -> None:
    task_id = await road.accept()
    await road.commit(task_id, "pack")

    await road.deploy(WITH_TOLL)
    for stage in ("ride", "rest", "arrive"):
        await road.commit(task_id, stage, pipeline=WITH_TOLL)
    assert await road.task(task_id, "status") == ("in_progress",)
    await road.commit(task_id, "toll", pipeline=WITH_TOLL)

    assert await road.task(task_id, "status") == ("completed",)
    assert await road.violated() == {}


async def test_a_removed_stage_is_waited_for_no_longer(road: Road) -> None:
    task_id = await road.accept()
    await road.commit(task_id, "pack")
    await road.commit(task_id, "ride")

    dropped = (Stranded("rest", tasks=1, dead_letters=0),)
    assert await road.deploy(WITHOUT_REST, force=True) == Deployment("travel", 2, "changed", dropped)

    assert await graph(road) == {"pack": [], "ride": ["pack"], "arrive": ["ride"]}
    assert (await road.events(task_id))[-1] == "StageRequested:arrive"
    await road.commit(task_id, "arrive", pipeline=WITHOUT_REST)
    assert await road.task(task_id, "status") == ("completed",)
    assert await road.violated() == {}


async def test_a_task_whose_last_stage_is_removed_is_complete(road: Road) -> None:
    task_id = await road.accept()
    for stage in ("pack", "ride", "rest"):
        await road.commit(task_id, stage)

    await road.deploy(pipeline("travel", pack=(), ride="pack", rest="pack"), force=True)

    assert await road.task(task_id, "status") == ("completed",)
    assert await road.violated() == {}


async def test_a_graph_that_would_strand_tasks_is_refused(road: Road) -> None:
    new, waiting, retrying, dead, passed, cancelled = [await road.accept() for _ in range(6)]
    for task_id in (waiting, retrying, dead, passed, cancelled):
        await road.commit(task_id, "pack")
    await road.commit(retrying, "rest", Retry("no inn"))
    await road.commit(dead, "rest", Reject("no inn"))
    await road.commit(passed, "rest")
    async with road.engine.begin() as connection:
        await cancel(connection, [cancelled], road.settings.schema, by="ada")
    before = await road.ask("select task_id, version, status from postroad.task order by 1")

    with pytest.raises(RefusedError, match=r"'travel'.*'rest' \(2 tasks, 1 dead letters\).*--force"):
        await road.deploy(WITHOUT_REST)

    assert await version(road) == 1
    assert "rest" in await graph(road)
    assert await road.ask("select task_id, version, status from postroad.task order by 1") == before
    assert await road.task(new, "status") == ("pending",)


async def test_a_renamed_stage_strands_the_tasks_that_are_at_it(road: Road) -> None:
    await road.accept()

    with pytest.raises(RefusedError, match=r"'pack' \(1 tasks, 0 dead letters\)"):
        await road.deploy(pipeline("travel", load=(), ride="load", rest="load", arrive=("ride", "rest")))


async def test_a_stage_that_no_task_is_at_is_removed_without_force(road: Road) -> None:
    done, early = await road.accept(), await road.accept()
    await road.complete(done)

    assert await road.deploy(WITHOUT_REST) == Deployment("travel", 2, "changed")

    await road.complete(early, WITHOUT_REST)
    assert await road.task(early, "status") == ("completed",)
    assert await road.violated() == {}


async def test_tasks_that_a_forced_graph_frees_go_on_by_it(road: Road) -> None:
    dead, twice_dead, last = [await road.accept() for _ in range(3)]
    for task_id in (dead, twice_dead, last):
        await road.commit(task_id, "pack")
        await road.commit(task_id, "rest", Reject("no inn"))
    await road.commit(twice_dead, "ride", Reject("no horse"))
    await road.commit(last, "ride")
    only_pack_and_ride = pipeline("travel", pack=(), ride="pack")

    deployment = await road.deploy(only_pack_and_ride, force=True)

    assert deployment.dropped == (Stranded("rest", tasks=0, dead_letters=3),)
    assert await road.task(dead, "status", "finished_at") == ("in_progress", None)
    assert (await road.task(twice_dead, "status")) == ("failed",)
    assert (await road.task(last, "status")) == ("completed",)
    assert await road.ask("select stage from postroad.dead_letter where resolved_at is null") == [("ride",)]
    assert "StageRequested:ride" in await road.events(dead)
    assert "StageDropped:rest" in await road.events(dead)
    await road.commit(dead, "ride", pipeline=only_pack_and_ride)
    assert await road.task(dead, "status") == ("completed",)
    assert await road.violated() == {}


async def test_an_attempt_at_a_stage_that_was_removed_meanwhile_changes_nothing(road: Road) -> None:
    task_id = await road.accept()
    await road.commit(task_id, "pack")
    rest = TRAVEL.graph()["rest"]
    ledger = Ledger(road.engine, road.settings.schema, "host:1:00000000")
    work = (await ledger.load(rest, [task_id]))[task_id]

    await road.deploy(WITHOUT_REST, force=True)
    settled = await ledger.commit(Attempt(rest, work, Reject("no inn"), datetime.now(UTC)))

    assert settled.verdict is None
    assert await road.task(task_id, "status") == ("in_progress",)
    assert await road.ask("select from postroad.dead_letter") == []
    assert await road.violated() == {}


async def test_a_dead_letter_of_a_stage_that_is_gone_is_not_requeued(road: Road) -> None:
    task_id = await road.accept()
    await road.commit(task_id, "pack", Reject("no bag"))
    ((letter,),) = await road.ask("select dead_letter_id from postroad.dead_letter")
    await road.ask("delete from postroad.stage where stage = 'pack'")

    async with road.engine.begin() as connection:
        assert await requeue(connection, [letter], road.settings.schema, by="ada") == []

    assert await road.task(task_id, "status") == ("failed",)


async def test_a_deployment_and_requeues_at_once_leave_no_task_behind(road: Road) -> None:
    tasks = [await road.accept() for _ in range(20)]
    for task_id in tasks:
        await road.commit(task_id, "pack")
        await road.commit(task_id, "rest", Reject("no inn"))
    ids = [one for (one,) in await road.ask("select dead_letter_id from postroad.dead_letter")]

    async def again(letter: int) -> None:
        async with road.engine.begin() as connection:
            await requeue(connection, [letter], road.settings.schema, by="ada")

    await asyncio.gather(*(again(letter) for letter in reversed(ids)), road.deploy(WITHOUT_REST, force=True))

    assert set(await road.ask("select status from postroad.task")) == {("in_progress",)}
    assert await road.ask("select from postroad.dead_letter where resolved_at is null") == []
    assert await road.violated() == {}


async def test_a_stage_that_no_longer_waits_is_asked_for(road: Road) -> None:
    task_id = await road.accept()

    await road.deploy(pipeline("travel", pack=(), ride=(), rest="pack", arrive=("ride", "rest")))

    assert sorted(await requested(road)) == [("pack", "deploy"), ("ride", "deploy")]
    assert (await road.events(task_id))[0] == "TaskCreated"


async def test_a_paused_stage_stays_paused(road: Road) -> None:
    await road.ask("update postroad.stage set paused = true where stage = 'ride'")

    await road.deploy(WITH_TOLL)

    assert await road.ask("select stage from postroad.stage where paused") == [("ride",)]


async def test_the_same_deployment_many_times_at_once_is_one(road: Road) -> None:
    new = pipeline("return", pack=(), ride="pack")

    answers = await asyncio.gather(*(road.deploy(new) for _ in range(12)))

    assert sorted(answer.change for answer in answers) == ["new"] + ["unchanged"] * 11
    assert {answer.version for answer in answers} == {1}


async def test_different_deployments_at_once_follow_each_other(road: Road) -> None:
    for _ in range(5):
        await road.deploy()
        before = await version(road)
        graphs = {"toll": WITH_TOLL, "rest": WITHOUT_REST}

        answers = await asyncio.gather(*(road.deploy(one) for one in graphs.values()))

        assert sorted(answer.version for answer in answers) == [before + 1, before + 2]
        last = list(graphs.values())[[answer.version for answer in answers].index(before + 2)]
        assert await graph(road) == {name: list(stage.after) for name, stage in last.graph().items()}


async def test_a_worker_records_a_pipeline_that_nobody_knows(road: Road, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    await start(road, pipeline("return", pack=(), ride="pack"), "ride")

    assert await graph(road, "return") == {"pack": [], "ride": ["pack"]}
    assert "recorded pipeline return, version 1" in caplog.text


async def test_workers_that_start_at_once_record_a_pipeline_once(road: Road) -> None:
    new = pipeline("return", pack=(), ride="pack")

    await asyncio.gather(*(start(road, new, "pack", "ride") for _ in range(12)))

    assert await version(road, "return") == 1


async def test_workers_of_two_versions_that_start_at_once_record_one_of_them(road: Road) -> None:
    old, new = pipeline("return", pack=()), pipeline("return", pack=(), ride="pack")

    async with road.engine.begin() as connection:
        await record_if_new(connection, old, ["pack"], road.settings.schema)
        late = asyncio.create_task(start(road, new, "pack"))
        await road.until_waiting(1)
    await late

    assert await version(road, "return") == 1
    assert await graph(road, "return") == {"pack": []}


async def test_a_worker_of_the_graph_in_force_changes_and_says_nothing(
    road: Road, caplog: pytest.LogCaptureFixture
) -> None:
    await start(road, TRAVEL, *TRAVEL.graph())

    assert await version(road) == 1
    assert caplog.text == ""


async def test_a_worker_of_another_graph_warns_and_leaves_it_in_force(
    road: Road, caplog: pytest.LogCaptureFixture
) -> None:
    await start(road, WITHOUT_REST, "ride", "arrive")

    assert "another graph" in caplog.text
    assert await version(road) == 1
    assert "rest" in await graph(road)


@pytest.mark.parametrize("stages", [["toll"], ["pack", "toll"]])
async def test_a_worker_of_a_stage_that_is_not_in_force_is_refused(road: Road, stages: Sequence[str]) -> None:
    with pytest.raises(RefusedError, match=r"version 1 of pipeline 'travel'.*has no stage 'toll': run postroad deploy"):
        await start(road, WITH_TOLL, *stages)

    assert "toll" not in await graph(road)


async def test_a_worker_of_the_old_version_does_not_bring_it_back(road: Road) -> None:
    await road.deploy(WITH_TOLL)

    await start(road, TRAVEL, *TRAVEL.graph())

    assert await version(road) == 2
    assert "toll" in await graph(road)


async def test_priorities_are_in_force_from_the_deployment_on_and_everything_ready_is_asked_for(road: Road) -> None:
    task_id = await road.accept()

    await road.deploy(URGENT_TRAVEL)
    assert await road.ask("select priorities, version from postroad.pipeline") == [(True, 2)]
    assert (await road.events(task_id))[1:] == ["StageRequested:pack"]
    assert (await road.deploy(URGENT_TRAVEL)).change == "unchanged"

    await road.deploy(TRAVEL)
    assert await road.ask("select priorities, version from postroad.pipeline") == [(False, 3)]


async def test_a_worker_whose_code_says_otherwise_of_priorities_warns(
    road: Road, caplog: pytest.LogCaptureFixture
) -> None:
    await start(road, URGENT_TRAVEL, "pack")

    assert "another graph" in caplog.text
    assert await road.ask("select priorities from postroad.pipeline") == [(False,)]
