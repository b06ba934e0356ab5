"""What a worker commits: stage runs, tasks, events and dead letters together, once, whoever else is at it."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from postroad import Reject, Retry, Settings, Snooze
from postroad.core.database import make_engine
from postroad.core.outcome import Completed, Outcome
from postroad.core.task import new_task_id
from postroad.intake.cancel import cancel
from postroad.intake.dead_letters import requeue
from postroad.intake.retry import retry_from
from postroad.stages.ledger import Attempt, Kind, Ledger, Settled, Verdict, Work
from postroad.stages.runner import Trail
from postroad.testing.traffic import until
from tests.integration.road import TRAVEL, Road, open_road

T = TypeVar("T")

GRAPH = TRAVEL.graph()
DONE = Completed('{"by": "test"}')


@pytest.fixture
async def engine(settings: Settings) -> AsyncIterator[AsyncEngine]:
    """The connections of the workers, as opposed to those of the test."""
    engine = make_engine(settings, application="postroad stage")
    yield engine
    await engine.dispose()


@pytest.fixture
def ledger(engine: AsyncEngine) -> Ledger:
    return Ledger(engine, "postroad", "host:1:00000000")


@dataclass(frozen=True)
class Row:
    """A stage run."""

    status: str
    attempts: int
    result: Any
    error: str | None
    delay: timedelta | None
    worker: str
    started_at: datetime
    is_finished: bool


async def row(road: Road, task_id: UUID, stage: str) -> Row | None:
    rows = await road.ask(
        "select status, attempts, result, error, next_retry_at - now(), worker, started_at, finished_at is not null"
        " from postroad.stage_run where task_id = :id and stage = :stage",
        id=task_id,
        stage=stage,
    )
    return Row(*rows[0]) if rows else None


async def load(ledger: Ledger, task_id: UUID, stage: str) -> Work:
    return (await ledger.load(GRAPH[stage], [task_id]))[task_id]


async def attempt(ledger: Ledger, task_id: UUID, stage: str, outcome: Outcome = DONE) -> Attempt:
    return Attempt(GRAPH[stage], await load(ledger, task_id, stage), outcome, datetime.now(UTC))


async def commit(ledger: Ledger, task_id: UUID, stage: str, outcome: Outcome = DONE) -> Settled:
    return await ledger.commit(await attempt(ledger, task_id, stage, outcome))


def kind_of(settled: Settled) -> Kind | None:
    return settled.verdict.kind if settled.verdict else None


async def accept(road: Road, *, done: tuple[str, ...] = ()) -> UUID:
    task_id = await road.accept()
    for stage in done:
        await road.commit(task_id, stage)
    return task_id


async def everything(road: Road, task_id: UUID) -> list[Any]:
    """All that is known of a task."""
    return [
        await road.ask("select to_jsonb(task) from postroad.task where task_id = :id", id=task_id),
        await road.ask("select to_jsonb(r) from postroad.stage_run r where task_id = :id order by stage", id=task_id),
        await road.ask("select to_jsonb(d) from postroad.dead_letter d where task_id = :id", id=task_id),
        await road.events(task_id),
    ]


# Loading


async def test_what_is_loaded_is_what_a_handler_needs(road: Road, ledger: Ledger) -> None:
    task_id = await road.accept(payload={"n": 1})
    await road.commit(task_id, "pack", Completed('["bag"]'))

    work = await load(ledger, task_id, "ride")

    assert (work.payload, work.results, work.attempts, work.version) == ({"n": 1}, {"pack": ["bag"]}, 0, 2)
    assert (work.is_open, work.is_ready, work.wait) == (True, True, timedelta())
    assert (await load(ledger, task_id, "pack")).is_open is False
    assert (await load(ledger, task_id, "arrive")).is_ready is False


async def test_after_a_failure_the_time_until_the_retry_is_loaded(road: Road, ledger: Ledger) -> None:
    task_id = await accept(road)
    await commit(ledger, task_id, "pack", Retry("later", after=600))

    work = await load(ledger, task_id, "pack")

    assert work.attempts == 1
    assert work.wait is not None
    assert timedelta(minutes=9) < work.wait <= timedelta(minutes=10)


async def test_a_retry_that_is_due_waits_for_nothing(road: Road, ledger: Ledger) -> None:
    task_id = await accept(road)
    await commit(ledger, task_id, "pack", Retry("at once", after=0))

    assert (await load(ledger, task_id, "pack")).wait == timedelta()


async def test_there_is_nothing_to_do_for_a_stage_that_is_done_dead_or_of_a_cancelled_task(
    road: Road, ledger: Ledger
) -> None:
    task_id = await accept(road, done=("pack",))
    await commit(ledger, task_id, "ride", Reject("never"))

    assert (await load(ledger, task_id, "pack")).is_open is False
    assert (await load(ledger, task_id, "ride")).is_open is False
    assert (await load(ledger, task_id, "rest")).is_open is True
    async with road.engine.begin() as connection:
        await cancel(connection, [task_id], "postroad", by="test")
    assert (await load(ledger, task_id, "rest")).is_open is False


async def test_what_is_gone_or_of_another_pipeline_is_not_loaded(road: Road, ledger: Ledger) -> None:
    task_id = await accept(road)
    known = await ledger.load(GRAPH["pack"], [task_id, new_task_id()])
    of_another = await ledger.load(replace(GRAPH["pack"], pipeline="elsewhere"), [task_id])
    not_deployed = await ledger.load(replace(GRAPH["pack"], name="fly"), [task_id])

    assert (set(known), of_another, not_deployed) == ({task_id}, {}, {})
    assert await ledger.load(GRAPH["pack"], []) == {}


# What is written


async def test_a_result_is_written(road: Road, ledger: Ledger) -> None:
    task_id = await accept(road)
    made = await attempt(ledger, task_id, "pack", Completed('{"bag": 1}'))

    settled = await ledger.commit(made)

    assert settled == Settled(Verdict(Kind.DONE, 1, result='{"bag": 1}'))
    assert await row(road, task_id, "pack") == Row(
        "done", 1, {"bag": 1}, None, None, "host:1:00000000", made.started_at, True
    )
    assert await road.task(
        task_id, "status", "stage_status", "stages_done", "retry_count", "version", "finished_at"
    ) == ("in_progress", "pack_done", ["pack"], 0, 2, None)
    assert await road.events(task_id) == ["TaskCreated", "StageCompleted:pack"]
    assert await road.ask(
        "select data - 'started_at', (data ->> 'started_at')::timestamptz from postroad.outbox"
        " where type = 'StageCompleted'"
    ) == [({"attempt": 1, "worker": "host:1:00000000", "ran_seconds": made.ran}, made.started_at)]


async def test_a_failure_with_a_retry_ahead_is_written(road: Road, ledger: Ledger) -> None:
    task_id = await accept(road)
    made = replace(await attempt(ledger, task_id, "pack", Retry("torn", after=60)), error="Traceback …")
    made = replace(made, work=replace(made.work, asked_at=made.started_at - timedelta(seconds=1.5)))

    assert kind_of(await ledger.commit(made)) is Kind.FAILED

    written = await row(road, task_id, "pack")
    assert written is not None
    assert (written.status, written.attempts, written.error, written.is_finished) == ("failed", 1, "Traceback …", False)
    assert written.delay is not None
    assert timedelta(seconds=50) < written.delay <= timedelta(seconds=60)
    assert await road.task(
        task_id, "status", "stage_status", "stages_done", "retry_count", "version", "finished_at"
    ) == ("in_progress", "failed_at_stage:pack", [], 1, 2, None)
    assert await road.events(task_id) == ["TaskCreated", "StageFailed:pack"]
    assert await road.ask(
        "select data - 'worker' - 'started_at' from postroad.outbox where type = 'StageFailed'"
    ) == [
        (
            {
                "attempt": 1, "waited_seconds": 1.5, "ran_seconds": made.ran, "reason": "torn",
                "error": "Traceback …", "delay_seconds": 60,
            },
        )
    ]  # fmt: skip
    assert await road.count("dead_letter") == {"dead_letter": 0}


async def test_each_attempt_keeps_the_end_of_its_own_error(road: Road, ledger: Ledger) -> None:
    task_id = await accept(road)

    for error in ("first", "x" * 5000 + "second"):
        await ledger.commit(replace(await attempt(ledger, task_id, "pack", Retry("torn", after=0)), error=error))

    kept = await road.ask("select data ->> 'error' from postroad.outbox where type = 'StageFailed' order by position")
    assert kept == [("first",), ("x" * 3994 + "second",)]


async def test_a_snooze_is_written(road: Road, ledger: Ledger) -> None:
    task_id = await accept(road)

    assert kind_of(await commit(ledger, task_id, "pack", Snooze(60, "closed \x00 \ud800"))) is Kind.SNOOZED

    written = await row(road, task_id, "pack")
    assert written is not None
    assert (written.status, written.attempts, written.error) == ("snoozed", 0, "closed \N{REPLACEMENT CHARACTER} ?")
    assert await road.task(task_id, "status", "stage_status", "retry_count", "version") == (
        "in_progress",
        "received",
        0,
        2,
    )
    assert await road.events(task_id) == ["TaskCreated", "StageSnoozed:pack"]


async def test_a_dead_letter_is_written(road: Road, ledger: Ledger) -> None:
    task_id = await accept(road)
    made = replace(await attempt(ledger, task_id, "pack", Reject("no bag 17")), error="Traceback …")

    settled = await ledger.commit(made)

    assert settled.verdict is not None
    written = await row(road, task_id, "pack")
    assert written is not None
    assert (written.status, written.attempts, written.error, written.is_finished) == ("dead", 1, "Traceback …", True)
    status, stage_status, finished_at = await road.task(task_id, "status", "stage_status", "finished_at")
    assert (status, stage_status, finished_at is None) == ("failed", "failed_at_stage:pack", False)
    assert await road.ask(
        "select pipeline, stage, reason, error, fingerprint, attempts, resolved_at from postroad.dead_letter"
    ) == [("travel", "pack", "no bag 17", "Traceback …", settled.verdict.fingerprint, 1, None)]
    assert await road.events(task_id) == ["TaskCreated", "StageDead:pack", "TaskFailed"]


async def test_the_last_stage_completes_the_task(road: Road, ledger: Ledger) -> None:
    task_id = await accept(road, done=("pack", "rest", "ride"))

    await commit(ledger, task_id, "arrive")

    status, done, finished_at, version = await road.task(task_id, "status", "stages_done", "finished_at", "version")
    assert (status, set(done), finished_at is None, version) == ("completed", set(GRAPH), False, 5)
    assert (await road.events(task_id))[-2:] == ["StageCompleted:arrive", "TaskCompleted"]
    assert await road.violated() == {}


async def test_a_failed_task_stays_failed_while_its_other_stages_go_on(road: Road, ledger: Ledger) -> None:
    task_id = await accept(road, done=("pack",))
    await commit(ledger, task_id, "ride", Reject("never"))
    (failed_at,) = await road.task(task_id, "finished_at")

    await commit(ledger, task_id, "rest")

    assert await road.task(task_id, "status", "stage_status", "finished_at") == ("failed", "rest_done", failed_at)
    assert (await road.events(task_id)).count("TaskFailed") == 1
    assert await road.violated() == {}


async def test_a_change_and_its_events_are_of_one_transaction(road: Road, ledger: Ledger) -> None:
    tasks = [await accept(road, done=("pack", "rest")) for _ in range(4)]
    outcomes: list[Outcome] = [DONE, Retry("again", after=1), Snooze(1), Reject("never")]

    await asyncio.gather(
        *(commit(ledger, task_id, "ride", outcome) for task_id, outcome in zip(tasks, outcomes, strict=True))
    )

    for task_id in tasks:
        written = await road.ask(
            "select distinct xmin::text from ("
            " select xmin from postroad.task where task_id = :id union all"
            " select xmin from postroad.stage_run where task_id = :id and stage = 'ride' union all"
            " select xmin from postroad.dead_letter where task_id = :id union all"
            " select xmin from postroad.outbox where task_id = :id and stage is distinct from 'pack'"
            "    and stage is distinct from 'rest' and type <> 'TaskCreated') as written",
            id=task_id,
        )
        assert len(written) == 1
    assert await road.events(tasks[0]) == [
        "TaskCreated", "StageCompleted:pack", "StageCompleted:rest", "StageCompleted:ride", "StageRequested:arrive",
    ]  # fmt: skip


async def test_what_has_finished_meanwhile_shares_the_next_commit(road: Road, ledger: Ledger) -> None:
    tasks = [await accept(road) for _ in range(40)]
    attempts = [await attempt(ledger, task_id, "pack") for task_id in tasks]

    await asyncio.gather(*map(ledger.commit, attempts))

    rows = await road.ask("select count(distinct xid::text) from postroad.outbox where type = 'StageCompleted'")
    assert rows == [(1,)]


# Others who write the same task


async def test_when_somebody_else_wrote_the_task_it_is_decided_again(road: Road, ledger: Ledger) -> None:
    task_id = await accept(road, done=("pack",))
    stale = await attempt(ledger, task_id, "ride", Retry("torn", after=1))
    await road.commit(task_id, "rest")
    await road.commit(task_id, "ride", Retry("torn before", after=1))

    settled = await ledger.commit(stale)

    # This was the second attempt, whatever was loaded.
    assert settled == Settled(Verdict(Kind.FAILED, 2, reason="torn", delay=timedelta(seconds=1)))
    assert await road.task(task_id, "version", "retry_count") == (5, 2)


async def test_what_is_decided_again_may_be_the_last_attempt(road: Road, ledger: Ledger) -> None:
    task_id = await accept(road)
    stale = await attempt(ledger, task_id, "pack", Retry("torn", after=0))
    for _ in range(2):
        await road.commit(task_id, "pack", Retry("torn before", after=0))

    assert kind_of(await ledger.commit(stale)) is Kind.DEAD
    assert await road.violated() == {}


async def test_a_stage_that_somebody_else_has_done_changes_no_more(road: Road, ledger: Ledger) -> None:
    task_id = await accept(road)
    late = [await attempt(ledger, task_id, "pack", outcome) for outcome in (DONE, Retry("torn"), Reject("never"))]
    await road.commit(task_id, "pack", Completed('"first"'))
    before = await everything(road, task_id)

    settled = await asyncio.gather(*map(ledger.commit, late))

    assert settled == [Settled(None)] * 3
    assert await everything(road, task_id) == before


async def test_a_cancelled_task_changes_no_more(road: Road, ledger: Ledger) -> None:
    task_id = await accept(road)
    late = [await attempt(ledger, task_id, "pack", outcome) for outcome in (DONE, Retry("torn"), Reject("never"))]
    async with road.engine.begin() as connection:
        await cancel(connection, [task_id], "postroad", by="test")
    before = await everything(road, task_id)

    assert await asyncio.gather(*map(ledger.commit, late)) == [Settled(None)] * 3
    assert await everything(road, task_id) == before


async def test_a_task_that_was_pruned_changes_no_more(road: Road, ledger: Ledger) -> None:
    task_id = await accept(road)
    late = await attempt(ledger, task_id, "pack")
    await road.ask("delete from postroad.task where task_id = :id", id=task_id)

    assert await ledger.commit(late) == Settled(None)


async def test_a_stage_whose_predecessor_is_to_run_again_is_not_done(road: Road, ledger: Ledger) -> None:
    task_id = await accept(road, done=("pack", "rest", "ride"))
    late = await attempt(ledger, task_id, "arrive")
    async with road.engine.begin() as connection:
        await retry_from(connection, task_id, "ride", "postroad", by="test")
    before = await everything(road, task_id)

    assert await ledger.commit(late) == Settled(None)
    assert await everything(road, task_id) == before


async def test_what_a_handler_wrote_vanishes_if_its_stage_was_done_meanwhile(
    road: Road, engine: AsyncEngine, ledger: Ledger
) -> None:
    await road.ask("create table effect (task_id uuid)")
    task_id = await accept(road)
    late = await attempt(ledger, task_id, "pack")
    async with engine.connect() as connection:
        await connection.execute(text("insert into effect values (:id)"), {"id": task_id})
        await road.commit(task_id, "pack")

        settled = await ledger.commit_within(connection, late)

        assert settled == Settled(None)
        await connection.rollback()
    assert await road.ask("select * from effect") == []


async def test_a_handlers_own_transaction_is_left_to_its_caller(
    road: Road, engine: AsyncEngine, ledger: Ledger
) -> None:
    task_id = await accept(road)
    before = await everything(road, task_id)
    for is_committed in (False, True):
        async with engine.connect() as connection:
            settled = await ledger.commit_within(connection, await attempt(ledger, task_id, "pack"))

            assert kind_of(settled) is Kind.DONE
            assert await everything(road, task_id) == before
            await (connection.commit() if is_committed else connection.rollback())
        assert (await everything(road, task_id) == before) is not is_committed


async def test_a_handlers_own_transaction_sees_what_others_committed_meanwhile(
    road: Road, engine: AsyncEngine, ledger: Ledger
) -> None:
    task_id = await accept(road, done=("pack",))
    stale = await attempt(ledger, task_id, "ride")
    async with engine.connect() as connection:
        await connection.execute(text("select 1"))
        await road.commit(task_id, "rest")

        assert kind_of(await ledger.commit_within(connection, stale)) is Kind.DONE
        await connection.commit()
    assert (await road.events(task_id))[-1] == "StageRequested:arrive"


async def test_an_outcome_whose_commit_was_not_confirmed_is_recognised(road: Road, ledger: Ledger) -> None:
    task_id = await accept(road, done=("pack",))
    for outcome in (Retry("torn", after=60), Snooze(60)):
        made = await attempt(ledger, task_id, "ride", outcome)
        first = await ledger.commit(made)
        before = await everything(road, task_id)

        second = await ledger.commit(made)

        assert await everything(road, task_id) == before
        assert first.verdict is not None
        assert second.verdict is not None
        assert second.verdict.delay is not None
        assert first.verdict.delay == timedelta(seconds=60)
        assert timedelta(seconds=50) < second.verdict.delay <= timedelta(seconds=60)
        assert replace(second.verdict, delay=first.verdict.delay) == first.verdict


async def test_a_like_outcome_of_another_worker_or_attempt_is_not_taken_for_ones_own(
    road: Road, engine: AsyncEngine, ledger: Ledger
) -> None:
    task_id = await accept(road)
    other = Ledger(engine, "postroad", "host:2:00000000")
    made = await attempt(ledger, task_id, "pack", Retry("torn", after=0))
    await other.commit(made)

    await ledger.commit(made)

    assert await road.task(task_id, "retry_count", "version") == (2, 3)


# Stages side by side


async def test_two_stages_of_a_task_in_one_group_are_both_written(road: Road, ledger: Ledger) -> None:
    tasks = [await accept(road, done=("pack",)) for _ in range(10)]
    attempts = [await attempt(ledger, task_id, stage) for task_id in tasks for stage in ("ride", "rest")]

    settled = await asyncio.gather(*map(ledger.commit, attempts))

    assert {kind_of(one) for one in settled} == {Kind.DONE}
    rows = await road.ask(
        "select count(distinct xid::text) from postroad.outbox where stage in ('ride', 'rest', 'arrive')"
    )
    assert rows == [(1,)]
    for task_id in tasks:
        assert await road.task(task_id, "version", "stages_done") == (4, ["pack", "ride", "rest"])
        assert (await road.events(task_id))[-1] == "StageRequested:arrive"


async def test_a_stage_after_two_others_is_asked_for_once_when_they_end_at_once(
    road: Road, engine: AsyncEngine
) -> None:
    ledgers = [Ledger(engine, "postroad", f"host:{number}:00000000") for number in range(2)]
    tasks = [await road.accept() for _ in range(120)]
    await asyncio.gather(*(commit(ledgers[0], task_id, "pack") for task_id in tasks))
    chance = random.Random(7)

    async def end(task_id: UUID, stage: str) -> None:
        ledger = ledgers[stage == "rest"]
        made = await attempt(ledger, task_id, stage)
        await asyncio.sleep(chance.random() * 0.01)
        assert kind_of(await ledger.commit(made)) is Kind.DONE

    for start in range(0, len(tasks), 12):
        ends = [(task_id, stage) for task_id in tasks[start : start + 12] for stage in ("ride", "rest")]
        chance.shuffle(ends)
        await asyncio.gather(*(end(*one) for one in ends))

    asked = await road.ask("select task_id from postroad.outbox where type = 'StageRequested' and stage = 'arrive'")
    assert Counter(task_id for (task_id,) in asked) == Counter(tasks)
    # Both had their turn at being last, or nothing was tried.
    last = await road.ask("select stage_status, count(*) from postroad.task group by 1")
    assert {status for status, _ in last} == {"ride_done", "rest_done"}
    assert await road.violated() == {}


async def test_ledgers_that_commit_the_same_tasks_in_opposite_order_do_not_deadlock(
    road: Road, engine: AsyncEngine
) -> None:
    ledgers = {stage: Ledger(engine, "postroad", f"{stage}:1:00000000") for stage in ("ride", "rest")}
    tasks = [await road.accept() for _ in range(100)]
    await asyncio.gather(*(commit(ledgers["ride"], task_id, "pack") for task_id in tasks))
    orders = {"ride": sorted(tasks), "rest": sorted(tasks, reverse=True)}
    for again in range(3):
        outcome: Outcome = DONE if again == 2 else Snooze(0)
        loaded = {stage: await ledger.load(GRAPH[stage], tasks) for stage, ledger in ledgers.items()}

        settled = await asyncio.gather(
            *(
                ledger.commit(Attempt(GRAPH[stage], loaded[stage][task_id], outcome, datetime.now(UTC)))
                for stage, ledger in ledgers.items()
                for task_id in orders[stage]
            )
        )

        assert all(one.verdict for one in settled)
    assert await road.violated() == {}
    await road.ask("select pg_stat_force_next_flush()")
    assert await road.ask("select deadlocks from pg_stat_database where datname = current_database()") == [(0,)]


async def test_a_commit_that_must_decide_again_holds_no_locks_of_its_first_try(
    road: Road, settings: Settings, ledger: Ledger
) -> None:
    first, second = sorted([await accept(road, done=("pack",)) for _ in range(2)])
    attempts = [await attempt(ledger, task_id, "ride") for task_id in (first, second)]
    await road.commit(first, "rest")
    async with await psycopg.AsyncConnection.connect(settings.database_url) as other:
        await other.execute("select from postroad.task where task_id = %s for update", [first])
        committing = asyncio.gather(*map(ledger.commit, attempts))

        async def is_waiting() -> bool:
            return bool(
                await road.ask(
                    "select from pg_stat_activity where wait_event_type = 'Lock'"
                    " and application_name = 'postroad stage' and datname = current_database()"
                )
            )

        await until(is_waiting)
        # Had the commit kept the second task while it waits for the first, the server would have to end one of us.
        await other.execute("select from postroad.task where task_id = %s for update", [second])
        await other.commit()

    assert [kind_of(one) for one in await committing] == [Kind.DONE, Kind.DONE]
    await road.ask("select pg_stat_force_next_flush()")
    assert await road.ask("select deadlocks from pg_stat_database where datname = current_database()") == [(0,)]


async def test_an_outcome_that_postgres_refuses_spoils_no_other_of_its_group(road: Road, ledger: Ledger) -> None:
    tasks = [await accept(road) for _ in range(20)]
    attempts = [
        await attempt(ledger, task_id, "pack", Completed("{" if place in (3, 11) else "1"))
        for place, task_id in enumerate(tasks)
    ]

    settled = await asyncio.gather(*map(ledger.commit, attempts), return_exceptions=True)

    for place, one in enumerate(settled):
        assert isinstance(one, DBAPIError if place in (3, 11) else Settled)
    assert await road.task(tasks[3], "status", "version") == ("pending", 1)
    assert await road.ask("select count(*) from postroad.stage_run where status = 'done'") == [(18,)]


# Plans


async def test_plans_made_when_the_tables_were_empty_hold_when_they_are_large(road: Road, settings: Settings) -> None:
    engine = make_engine(settings, application="postroad stage", pool=1)

    @event.listens_for(engine.sync_engine, "connect")
    def keep_plans(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        cursor.execute("set plan_cache_mode = force_generic_plan")
        cursor.close()
        connection.commit()

    async def reads() -> dict[str, tuple[int, int]]:
        """How often each table was read from end to end, and by index."""
        async with engine.connect() as connection:
            await connection.execute(text("select pg_stat_force_next_flush()"))
        # Or what we have read of it ourselves is counted at any time.
        await road.ask("select pg_stat_force_next_flush()")
        rows = await road.ask(
            "select relname, coalesce(seq_scan, 0), coalesce(idx_scan, 0) from pg_stat_user_tables"
            " where relname in ('task', 'stage_run')"
        )
        return {name: (whole, by_index) for name, whole, by_index in rows}

    async def work_on(tasks: list[UUID]) -> None:
        loaded = await ledger.load(GRAPH["pack"], tasks)
        made = [
            Attempt(GRAPH["pack"], loaded[task_id], DONE, datetime.now(UTC)) for task_id in tasks if task_id in loaded
        ]
        made = made or [Attempt(GRAPH["pack"], nobody, DONE, datetime.now(UTC))]
        await asyncio.gather(*map(ledger.commit, made))

    ledger = Ledger(engine, "postroad", "host:1:00000000")
    somebody = await accept(road)
    nobody = replace(await load(ledger, somebody, "pack"), task_id=new_task_id())
    await road.ask("delete from postroad.task")
    try:
        for _ in range(10):
            await work_on([new_task_id()])
        async with engine.connect() as connection:
            kept = await connection.execute(
                text("select statement from pg_prepared_statements where generic_plans > 0")
            )
            statements = " ".join(statement for (statement,) in kept)
        assert re.search("held as materialized", statements), "the commit was not prepared"
        assert re.search("wanted", statements), "the load was not prepared"

        await road.ask(
            "insert into postroad.task (task_id, pipeline, payload, trace_id, traceparent)"
            " select gen_random_uuid(), 'travel', '{}', '', '' from generate_series(1, 100000)"
        )
        await road.ask(
            "insert into postroad.stage_run (task_id, stage, status, attempts)"
            " select task_id, 'fly', 'failed', 1 from postroad.task limit 30000"
        )
        tasks = [task_id for (task_id,) in await road.ask("select task_id from postroad.task limit 200")]
        before = await reads()
        await work_on(tasks)
        after = await reads()
    finally:
        await engine.dispose()

    assert await road.ask("select count(*) from postroad.stage_run where status = 'done'") == [(200,)]
    for table in ("task", "stage_run"):
        whole, by_index = (later - earlier for later, earlier in zip(after[table], before[table], strict=True))
        assert whole <= (1 if table == "stage_run" else 0), f"{table} was read from end to end"
        assert by_index >= 200


# A task through whatever may happen to it


@dataclass
class Expected:
    """What must be known of one stage."""

    status: str | None = None
    attempts: int = 0


class Journey(RuleBasedStateMachine):
    """One task, its stages' outcomes in any order, two workers, and people who requeue and cancel."""

    road: Road
    ledgers: list[Ledger]
    runner: asyncio.Runner

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @initialize()
    def begin(self) -> None:
        self.task_id: UUID = self.run(self.road.accept())
        self.stages = {stage: Expected() for stage in GRAPH}
        self.writes = 0
        self.is_cancelled = False
        self.has_failed = False
        self.events = ["TaskCreated"]
        self.stale: list[Attempt] = []

    # What the model says

    @property
    def done(self) -> set[str]:
        return {name for name, stage in self.stages.items() if stage.status == "done"}

    @property
    def dead(self) -> set[str]:
        return {name for name, stage in self.stages.items() if stage.status == "dead"}

    def is_ready(self, stage: str) -> bool:
        return set(GRAPH[stage].after) <= self.done

    def is_open(self, stage: str) -> bool:
        return not self.is_cancelled and self.done != set(GRAPH) and stage not in self.done | self.dead

    def expect(self, made: Attempt) -> Kind | None:
        """Take in what ``made`` must come to."""
        stage = made.stage.name
        if not self.is_open(stage):
            return None
        expected = self.stages[stage]
        self.writes += 1
        match made.outcome:
            case Completed():
                expected.status, expected.attempts = "done", expected.attempts + 1
                self.events.append(f"StageCompleted:{stage}")
                if stage in ("ride", "rest") and self.is_ready("arrive"):
                    self.events.append("StageRequested:arrive")
                if self.done == set(GRAPH):
                    self.events.append("TaskCompleted")
                return Kind.DONE
            case Snooze():
                expected.status = "snoozed"
                self.events.append(f"StageSnoozed:{stage}")
                return Kind.SNOOZED
            case Retry() if expected.attempts < made.stage.retries:
                expected.status, expected.attempts = "failed", expected.attempts + 1
                self.events.append(f"StageFailed:{stage}")
                return Kind.FAILED
            case _:
                was_failed = bool(self.dead)
                expected.status, expected.attempts = "dead", expected.attempts + 1
                self.events.append(f"StageDead:{stage}")
                if not was_failed:
                    self.events.append("TaskFailed")
                return Kind.DEAD

    # What happens

    @rule(
        stage=st.sampled_from(list(GRAPH)),
        worker=st.sampled_from([0, 1]),
        outcome=st.sampled_from([DONE, DONE, DONE, Retry("torn", after=0), Snooze(0), Reject("never")]),
        is_late=st.booleans(),
    )
    def attempt(self, stage: str, worker: int, outcome: Outcome, is_late: bool) -> None:
        work = self.run(load(self.ledgers[worker], self.task_id, stage))
        assert work.is_open == self.is_open(stage)
        assert work.is_ready == self.is_ready(stage)
        assert work.attempts == self.stages[stage].attempts
        if not work.is_open or not work.is_ready:
            return
        made = Attempt(GRAPH[stage], work, outcome, datetime.now(UTC))
        if is_late:
            self.stale.append(made)
            return
        settled = self.run(self.ledgers[worker].commit(made))
        assert kind_of(settled) is self.expect(made)

    @precondition(lambda self: self.stale)
    @rule(chance=st.randoms(use_true_random=False), worker=st.sampled_from([0, 1]))
    def commit_late(self, chance: random.Random, worker: int) -> None:
        made = self.stale.pop(chance.randrange(len(self.stale)))
        settled = self.run(self.ledgers[worker].commit(made))
        assert kind_of(settled) is self.expect(made)

    @precondition(lambda self: self.stale)
    @rule()
    def commit_all_at_once(self) -> None:
        async def commit_all() -> list[Settled]:
            return await asyncio.gather(*(self.ledgers[0].commit(made) for made in self.stale))

        settled = self.run(commit_all())
        assert [kind_of(one) for one in settled] == [self.expect(made) for made in self.stale]
        self.stale.clear()

    @precondition(lambda self: self.dead and not self.is_cancelled)
    @rule(chance=st.randoms(use_true_random=False))
    def requeue(self, chance: random.Random) -> None:
        stage = chance.choice(sorted(self.dead))

        async def ask() -> list[tuple[UUID, str]]:
            rows = await self.road.ask(
                "select dead_letter_id from postroad.dead_letter"
                " where task_id = :id and stage = :stage and resolved_at is null",
                id=self.task_id,
                stage=stage,
            )
            async with self.road.engine.begin() as connection:
                return await requeue(connection, [number for (number,) in rows], "postroad", by="test")

        assert self.run(ask()) == [(self.task_id, stage)]
        self.stages[stage] = Expected("failed", 0)
        self.writes += 1
        self.events.append(f"StageRequeued:{stage}")
        self.events += [
            f"StageRequested:{name}" for name in GRAPH if self.is_ready(name) and name not in self.done | self.dead
        ]

    @precondition(lambda self: self.writes > 3 and not self.is_cancelled)
    @rule(is_meant=st.sampled_from([False, False, False, True]))
    def cancel(self, is_meant: bool) -> None:
        if not is_meant:
            return

        async def ask() -> list[UUID]:
            async with self.road.engine.begin() as connection:
                return await cancel(connection, [self.task_id], "postroad", by="test")

        is_over = self.done == set(GRAPH)
        assert self.run(ask()) == ([] if is_over else [self.task_id])
        if not is_over:
            self.is_cancelled = True
            self.writes += 1
            self.events.append("TaskCancelled")

    # What must hold

    @invariant()
    def the_task_is_what_its_stages_make_it(self) -> None:
        if not hasattr(self, "task_id"):
            return
        status, done, version, retries, finished_at = self.run(
            self.road.task(self.task_id, "status", "stages_done", "version", "retry_count", "finished_at")
        )
        rows = self.run(
            self.road.ask("select stage, status, attempts from postroad.stage_run where task_id = :id", id=self.task_id)
        )
        runs = {stage: Expected(status, attempts) for stage, status, attempts in rows}

        assert runs == {name: stage for name, stage in self.stages.items() if stage.status}
        assert len(done) == len(set(done))
        assert set(done) == self.done
        assert version == 1 + self.writes
        assert (status == "cancelled") == self.is_cancelled
        if not self.is_cancelled:
            assert (status == "failed") == any(run.status == "dead" for run in runs.values())
            assert (status == "completed") == (set(done) == set(GRAPH))
            assert (status == "pending") == (self.writes == 0)
        assert (finished_at is not None) == (status in ("completed", "failed", "cancelled"))
        assert retries == sum(event.startswith("StageFailed:") for event in self.events)

    @invariant()
    def the_journey_tells_every_change(self) -> None:
        if hasattr(self, "task_id"):
            told = self.run(self.road.events(self.task_id))
            # What is asked for again in one statement comes in no order of its own.
            assert Counter(told) == Counter(self.events)
            assert [one for one in told if "Requested" not in one] == [
                one for one in self.events if "Requested" not in one
            ]

    def teardown(self) -> None:
        if hasattr(self, "task_id"):
            assert self.run(self.road.violated()) == {}


def test_a_task_is_consistent_whatever_happens_to_it(settings: Settings) -> None:
    with asyncio.Runner() as runner:

        async def open_all() -> tuple[Any, Road, AsyncEngine]:
            opened = open_road(settings, TRAVEL)
            return opened, await opened.__aenter__(), make_engine(settings, application="postroad stage")

        opened, road, engine = runner.run(open_all())

        class ThisJourney(Journey):
            pass

        ThisJourney.road = road
        ThisJourney.ledgers = [Ledger(engine, "postroad", f"host:{number}:00000000") for number in range(2)]
        ThisJourney.runner = runner
        try:
            run_state_machine_as_test(
                ThisJourney,
                settings=hypothesis_settings(
                    max_examples=15,
                    stateful_step_count=20,
                    deadline=None,
                    database=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(engine.dispose())
            runner.run(opened.__aexit__(None, None, None))


async def test_the_lines_of_an_attempt_stand_in_its_event_if_there_are_any(road: Road, ledger: Ledger) -> None:
    task_id = await accept(road)
    said = ('INFO \\ "one"', "ERROR ☃\ntwo")
    await ledger.commit(replace(await attempt(ledger, task_id, "pack", Retry("no box")), trail=Trail(said)))
    await commit(ledger, task_id, "pack")

    rows = await road.ask("select type, data from postroad.outbox where stage = 'pack' order by position")

    told = dict(rows[:2])
    assert told["StageFailed"]["log"] == list(said)
    assert told["StageFailed"]["reason"] == "no box"
    assert "log" not in told["StageCompleted"]
