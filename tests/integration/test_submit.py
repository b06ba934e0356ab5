"""Accepting many tasks in one commit, from several processes at once."""

import asyncio
import random
from collections import Counter
from typing import Any
from uuid import UUID

from sqlalchemy import event, text

from postroad import Settings
from postroad.core.database import make_engine
from postroad.core.task import new_task_id
from postroad.core.telemetry import continued
from postroad.intake.submit import KeyHeld, Submitter
from postroad.outbox.submit import Accepted, Answer, KeyTaken, Submission, TaskTaken, accept
from tests.integration.road import Road

TRACE = continued(None)


def submission(task_id: UUID, *, key: str | None = None, payload: str = "{}") -> Submission:
    return Submission(task_id, "travel", payload, "{}", TRACE, key)


async def deadlocks(road: Road) -> int:
    await road.ask("select pg_stat_force_next_flush()")
    ((count,),) = await road.ask("select deadlocks from pg_stat_database where datname = current_database()")
    return int(count)


async def test_processes_that_are_given_the_same_tasks_in_any_order_do_not_deadlock(
    road: Road, settings: Settings
) -> None:
    engines = [make_engine(settings, application="postroad serve", pool=3) for _ in range(3)]
    submitters = [Submitter(engine, "postroad") for engine in engines]
    chance = random.Random(5)

    async def submit(submitter: Submitter, tasks: list[UUID], keys: dict[UUID, str | None]) -> list[Answer | KeyHeld]:
        order = chance.sample(tasks, len(tasks))
        return await asyncio.gather(*(submitter.submit(submission(one, key=keys[one])) for one in order))

    try:
        for _ in range(20):
            tasks = [new_task_id() for _ in range(40)]
            keys = {one: f"key-{chance.random()}" if chance.random() < 0.5 else None for one in tasks}
            answers = await asyncio.gather(*(submit(submitter, tasks, keys) for submitter in submitters))

            kinds = Counter(type(answer) for per_process in answers for answer in per_process)
            assert set(kinds) <= {Accepted, TaskTaken}
    finally:
        for engine in engines:
            await engine.dispose()
    assert await road.count("task") == {"task": 20 * 40}
    assert await deadlocks(road) == 0
    assert await road.violated() == {}


async def test_plans_made_when_the_tables_were_empty_hold_when_they_are_large(road: Road, settings: Settings) -> None:
    engine = make_engine(settings, application="postroad serve", pool=1)

    @event.listens_for(engine.sync_engine, "connect")
    def keep_plans(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        cursor.execute("set plan_cache_mode = force_generic_plan")
        cursor.close()
        connection.commit()

    async def whole_reads() -> int:
        """How often a table was read from end to end."""
        async with engine.connect() as connection:
            await connection.execute(text("select pg_stat_force_next_flush()"))
        await road.ask("select pg_stat_force_next_flush()")  # what the road itself has read counts before, not after
        ((count,),) = await road.ask(
            "select sum(coalesce(seq_scan, 0)) from pg_stat_user_tables where relname in ('task', 'intake_key')"
        )
        return int(count)

    async def submit(*group: Submission) -> list[Answer]:
        async with engine.begin() as connection:
            return await accept(connection, group, "postroad")

    try:
        for _ in range(10):
            await submit(submission(new_task_id(), key="first"))
        await road.ask("delete from postroad.task")
        await road.ask("delete from postroad.intake_key")
        await road.ask(
            "insert into postroad.task (task_id, pipeline, payload, trace_id, traceparent)"
            " select gen_random_uuid(), 'travel', '{}', '', '' from generate_series(1, 20000)"
        )
        await road.ask(
            "insert into postroad.intake_key (pipeline, key, request_hash, task_id)"
            " select 'travel', task_id::text, '', task_id from postroad.task"
        )
        keys = [key for (key,) in await road.ask("select key from postroad.intake_key limit 100")]
        before = await whole_reads()
        answers = await submit(
            *(submission(new_task_id(), key=key, payload="1") for key in keys),
            submission(new_task_id()),
            submission(UUID(keys[0])),
        )
        after = await whole_reads()
    finally:
        await engine.dispose()

    assert Counter(map(type, answers)) == {KeyTaken: 100, Accepted: 1, TaskTaken: 1}
    assert after == before, "a table was read from end to end"
