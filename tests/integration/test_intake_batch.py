"""Batches of tasks: an answer for each line, whatever is wrong with its neighbours."""

import asyncio
from itertools import pairwise
from uuid import UUID, uuid4

from sqlalchemy import text

from postroad import Settings
from tests.integration.door import NOTHING, Door, line, open_door, pointers, problem, raw

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"


async def test_a_batch_is_answered_line_by_line_and_a_bad_line_does_not_spoil_the_rest(door: Door) -> None:
    lines = [
        line(payload=1),
        b"{",
        line(payload=2, pipeline="voyage"),
        line(payload=3, idempotency_key="k"),
        line(payload=4, colour="red", labels=[]),
        rb'{"pipeline":"travel","payload":"\ud800"}',
        b"[" * 5000,
        line(payload=5),
    ]

    answers = await door.batch(lines)

    assert [answer["line"] for answer in answers] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [answer["status"] for answer in answers] == [202, 400, 422, 202, 422, 422, 422, 202]
    assert pointers(answers[2]) == ["#/pipeline"]
    assert pointers(answers[4]) == ["#/colour", "#/labels"]
    accepted = [answer["task_id"] for answer in answers if answer["status"] == 202]
    rows = await door.road.ask("select task_id, payload from postroad.task order by payload")
    assert [(UUID(task_id), payload) for task_id, payload in zip(accepted, (1, 3, 5), strict=True)] == rows
    assert await door.road.count() == {"task": 3, "outbox": 3, "intake_key": 1}


async def test_a_batch_has_a_key_for_each_line(door: Door) -> None:
    first = await door.submit("a", payload=1)

    answers = await door.batch([
        line(payload=1, idempotency_key="a"),
        line(payload=2, idempotency_key="a"),
        line(payload=1, idempotency_key="b"),
        line(payload=1, idempotency_key=None),
        line(payload=1, idempotency_key=""),
        line(payload=1, idempotency_key=7),
        line(payload=1, idempotency_key="x" * 256),
    ])  # fmt: skip

    assert [answer["status"] for answer in answers] == [202, 422, 202, 202, 422, 422, 422]
    assert [answer.get("replayed") for answer in answers[:4]] == [True, None, None, None]
    assert answers[0]["task_id"] == answers[1]["task_id"] == first.json()["task_id"]
    assert answers[0]["created_at"] == first.json()["created_at"]
    assert [pointers(answer) for answer in answers[4:]] == [["#/idempotency_key"]] * 3


async def test_a_line_that_comes_twice_in_a_batch_is_one_task(door: Door) -> None:
    own, other = str(uuid4()), str(uuid4())

    answers = await door.batch([
        line(idempotency_key="k"),
        line(idempotency_key="k"),
        line(idempotency_key="k", payload="other"),
        line(task_id=own),
        line(task_id=own),
        line(task_id=own, payload="other"),
        line(task_id=other, idempotency_key="a"),
        line(task_id=other, idempotency_key="b"),
    ])  # fmt: skip

    assert [answer["status"] for answer in answers] == [202, 202, 422, 202, 202, 422, 202, 409]
    assert [answer.get("replayed", False) for answer in answers] == [
        False,
        True,
        False,
        False,
        True,
        False,
        False,
        False,
    ]
    assert await door.road.count() == {"task": 3, "outbox": 3, "intake_key": 3}


async def test_the_lines_of_a_batch_are_in_the_trace_of_its_request(door: Door) -> None:
    await door.post_batch(b"\n".join([raw(line())] * 3), traceparent=TRACEPARENT)

    assert await door.road.ask("select distinct trace_id from postroad.task") == [(TRACE,)]


async def test_each_line_of_a_batch_without_a_trace_begins_its_own(door: Door) -> None:
    answers = await door.batch([line()] * 5)

    assert len({answer["trace_id"] for answer in answers}) == 5


async def test_a_batch_may_have_10_000_lines(door: Door) -> None:
    answers = await door.batch(line(payload=number) for number in range(10_000))

    assert [answer["line"] for answer in answers] == list(range(1, 10_001))
    assert {answer["status"] for answer in answers} == {202}
    assert await door.road.count("task", "outbox") == {"task": 10_000, "outbox": 10_000}


async def test_a_batch_of_more_bytes_is_refused_as_a_whole(door: Door) -> None:
    wide = raw(line(payload=1)) + b"\n" + raw(line(payload="x" * 16 * 1024 * 1024))

    assert "16,777,216 bytes" in problem(await door.post_batch(wide), 413, "too-large")["detail"]
    assert await door.road.count() == NOTHING


async def test_a_batch_may_be_empty(door: Door) -> None:
    for body in (b"", b"\n", b"\r\n \n\t\n"):
        answer = await door.post_batch(body)
        assert (answer.status_code, answer.content) == (200, b"")


async def test_a_batch_of_nothing_but_newlines_holds_up_nobody(door: Door) -> None:
    answer = await door.post_batch(b"\n" * 16 * 1024 * 1024)

    problem(answer, 413, "too-large")


async def test_a_key_for_a_whole_batch_is_refused(door: Door) -> None:
    answer = await door.post_batch(raw(line()), Idempotency_Key="k")

    assert "idempotency_key" in problem(answer, 400, "malformed")["detail"]
    assert await door.road.count() == NOTHING


async def test_others_are_served_while_a_large_batch_is_read(door: Door) -> None:
    body = b"\n".join([raw(line(payload=[0] * 200_000))] * 4)
    batch = asyncio.create_task(door.post_batch(body))
    clock = asyncio.get_running_loop().time
    turns = [clock()]

    while not batch.done():
        await asyncio.sleep(0.005)
        turns.append(clock())

    assert (await batch).status_code == 200
    longest = max(later - earlier for earlier, later in pairwise(turns))
    assert longest < (turns[-1] - turns[0]) / 2


async def test_batches_with_the_same_keys_in_opposite_order_do_not_wait_for_each_other(
    settings: Settings, door: Door
) -> None:
    keys = [f"key-{number:03}" for number in range(300)]
    hold = text(
        "insert into postroad.intake_key (pipeline, key, request_hash, task_id)"
        " values ('travel', 'key-150', '', gen_random_uuid())"
    )
    async with open_door(settings) as another_process:
        doors = [door, Door(another_process, door.road)]
        async with door.road.engine.connect() as connection:
            await connection.execute(hold)
            batches = [
                asyncio.create_task(one.batch(line(idempotency_key=key) for key in order))
                for one, order in zip(doors, (keys, keys[::-1]), strict=True)
            ]
            await door.road.until_waiting(2)
            await connection.rollback()
        first, second = [await batch for batch in batches]

    assert {answer["status"] for answer in (*first, *second)} == {202}
    assert [answer["task_id"] for answer in first] == [answer["task_id"] for answer in second[::-1]]
    assert await door.road.count() == {"task": 300, "outbox": 300, "intake_key": 300}


async def test_a_thousand_conflicts_hold_up_nobody(door: Door) -> None:
    own = str(uuid4())
    await door.submit("first", task_id=own)

    answers = await door.batch(line(task_id=own, idempotency_key=f"k{number}") for number in range(1000))

    assert {answer["status"] for answer in answers} == {409}
    (committed,) = await door.road.ask(
        "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
    )
    assert committed[0] < 200
