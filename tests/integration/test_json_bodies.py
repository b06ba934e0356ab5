"""Every text of the table of JSON bodies gets its answer, alone and in a batch; what is refused leaves nothing."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import httpx2
import msgspec
import pytest

from postroad import Settings
from postroad.intake.app import create_app
from tests.integration.door import Door, open_port, pointers, problem
from tests.integration.json_bodies import BODIES, BODY_LIMIT, LINES, PAYLOADS, Case
from tests.integration.road import Road

AT_ONCE = 20
LARGEST_ANSWER = 2_000


class Shown(msgspec.Struct):
    """Of a task as it is shown, the payload as it is written."""

    payload: msgspec.Raw


@pytest.fixture
async def door(settings: Settings, road: Road) -> AsyncIterator[Door]:
    """A door with small limits, behind a server of HTTP."""
    app = create_app(replace(settings, body_limit=BODY_LIMIT))
    async with open_port(app) as port, httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        yield Door(client, road)


def test_the_table_says_of_each_case_once_what_it_must_be() -> None:
    for cases in (PAYLOADS, BODIES):
        assert len({case.name for case in cases}) == len(cases)
    for case in (*PAYLOADS, *BODIES):
        match case.name[:2]:
            case "y_":
                # What is JSON may still be no task.
                assert case.status == 202 or (case in BODIES and case.status == 422), case.name
            case "n_":
                assert case.status in (400, 413), case.name
            case "i_":
                assert case.why, case.name
            case _:
                raise AssertionError(case.name)


async def test_each_payload_has_its_answer(door: Door) -> None:
    await answers_are_those_of(door, PAYLOADS, [within(case.text) for case in PAYLOADS])


async def test_each_body_has_its_answer(door: Door) -> None:
    await answers_are_those_of(door, BODIES, [case.text for case in BODIES])


async def test_each_payload_has_the_same_answer_in_a_line_of_a_batch(door: Door) -> None:
    told = await door.batch(within(case.text, key=case.name) for case in PAYLOADS)

    assert {case.name: told_of(one) for case, one in zip(PAYLOADS, told, strict=True)} == {
        case.name: expected(case) for case in PAYLOADS
    }
    assert [one["line"] for one in told] == list(range(1, len(PAYLOADS) + 1))
    assert max(len(json.dumps(one)) for one in told) < LARGEST_ANSWER
    await nothing_else_is_left(door, PAYLOADS)


async def test_each_line_of_a_batch_has_its_answer(door: Door) -> None:
    answers = {name: await door.post_batch(text) for name, text, _ in LINES}

    told = {name: [json.loads(line) for line in answer.text.splitlines()] for name, answer in answers.items()}
    assert {name: {one["line"]: one["status"] for one in lines} for name, lines in told.items()} == {
        name: statuses for name, _, statuses in LINES
    }
    keys = [key for (key,) in await door.road.ask("select key from postroad.intake_key")]
    assert not [key for key in keys if key.startswith("n")]
    await is_whole(door, sum(status == 202 for _, _, statuses in LINES for status in statuses.values()))


def within(payload: bytes, *, key: str = "") -> bytes:
    """A task with this payload, and with a key in the body if one is given."""
    own = b',"idempotency_key":"%s"' % key.encode() if key else b""
    return b'{"pipeline":"travel","payload":%s%s}' % (payload, own)


async def answers_are_those_of(door: Door, cases: Sequence[Case], bodies: Sequence[bytes]) -> None:
    """Submit the body of each case, under its name for a key."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def submit(case: Case, body: bytes) -> tuple[httpx2.Response, bytes]:
        async with limit:
            answer = await door.post(body, Idempotency_Key=case.name)
            if answer.status_code != 202:
                return answer, b""
            shown = await door.client.get(answer.headers["location"])
            return answer, bytes(msgspec.json.decode(shown.content, type=Shown).payload)

    answers = await asyncio.gather(*map(submit, cases, bodies))

    told = {
        case.name: told_of(problem(answer, answer.status_code) if answer.is_error else {"status": answer.status_code})
        for case, (answer, _) in zip(cases, answers, strict=True)
    }
    assert told == {case.name: expected(case) for case in cases}
    assert {case.name: shown for case, (_, shown) in zip(cases, answers, strict=True)} == {
        case.name: case.shown for case in cases
    }
    assert max(len(answer.content) for answer, _ in answers) < LARGEST_ANSWER
    await nothing_else_is_left(door, cases)


def told_of(answer: dict[str, Any]) -> tuple[Any, ...]:
    """Of an answer the status, and of a problem its kind, and where the faults are."""
    return (202,) if answer["status"] == 202 else (answer["status"], answer["type"], pointers(answer))


def expected(case: Case) -> tuple[Any, ...]:
    """The same, as the case has it."""
    if case.status == 202:
        return (202,)
    return (case.status, f"/problems/{case.slug}", [case.pointer] * (case.status == 422))


async def nothing_else_is_left(door: Door, cases: Sequence[Case]) -> None:
    """Postgres has the payloads of those that were accepted, each under its name, and no more."""
    stored = await door.road.ask(
        "select key, payload::text from postroad.intake_key join postroad.task using (task_id)"
    )
    assert dict(stored) == {case.name: case.stored for case in cases if case.status == 202}
    await is_whole(door, len(stored))


async def is_whole(door: Door, count: int) -> None:
    """There are so many tasks, each with what belongs to it."""
    assert await door.road.count() == {"task": count, "outbox": count, "intake_key": count}
    assert await door.road.violated() == {}
