"""The rate of a key at the door: over all processes, per line of a batch, and with a Redis that is away."""

import asyncio
import json
import os
import signal
import time
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from postroad import Settings
from postroad.core.servers import Valkey
from postroad.intake.problems import QUOTA_EXCEEDED
from postroad.testing.traffic import until
from tests.integration.door import Door, line, open_door, problem, raw
from tests.integration.road import Road


async def submit(door: Door, header: dict[str, str]) -> httpx2.Response:
    return await door.post(raw(line()), **header)


def refused(answer: httpx2.Response) -> dict[str, Any]:
    """The body of an answer to one that came too often."""
    body = problem(answer, 429)
    assert body["type"] == QUOTA_EXCEEDED
    assert body["violated-policies"] == ["key"]
    assert int(answer.headers["retry-after"]) >= int(answer.headers["ratelimit"].rpartition("=")[2])
    return body


async def test_a_rate_is_counted_down_and_then_the_answer_is_429(door: Door) -> None:
    header = await door.key("submit", rate="5/h")

    answers = [await submit(door, header) for _ in range(6)]

    assert [answer.status_code for answer in answers] == [202] * 5 + [429]
    assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"key";q=5;w=3600'}
    left = [answer.headers["ratelimit"].split(";")[1] for answer in answers]
    assert left == ["r=4", "r=3", "r=2", "r=1", "r=0", "r=0"]
    assert "5/h" in refused(answers[-1])["detail"]
    assert 700 < int(answers[-1].headers["retry-after"]) <= 720
    assert await door.road.count("task") == {"task": 5}


async def test_every_request_counts_but_another_key_has_its_own_rate(door: Door) -> None:
    header, other = [await door.key("submit", "read", rate="3/h") for _ in range(2)]

    answers = [
        await door.post(b"{", **header),
        await door.client.get("/v1/dead-letters", headers=header),
        await door.client.post("/v1/dead-letters:requeue", headers=header),
        await submit(door, header),
    ]

    assert [answer.status_code for answer in answers] == [400, 200, 403, 429]
    assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"key";q=3;w=3600'}
    assert (await submit(door, other)).headers["ratelimit"].startswith('"key";r=2;')


async def test_a_key_without_a_rate_is_told_nothing_of_it(door: Door) -> None:
    answer = await submit(door, await door.key("submit"))

    assert not {"ratelimit", "ratelimit-policy"} & answer.headers.keys()


async def test_all_processes_of_the_intake_share_a_rate(settings: Settings, door: Door) -> None:
    header = await door.key("submit", rate="10/h")

    async with open_door(settings) as client:
        doors = [door, Door(client, door.road)] * 10
        answers = await asyncio.gather(*(submit(one, header) for one in doors))

    assert sorted(answer.status_code for answer in answers) == [202] * 10 + [429] * 10


async def test_each_line_of_a_batch_counts(door: Door) -> None:
    header = await door.key("submit", rate="5/h")
    tasks = [line(idempotency_key=f"{number}") for number in range(7)]
    lines = [tasks[0], "no task", *tasks[1:]]

    answer = await door.post_batch(b"\n".join(map(raw, lines)), **header)
    again = await door.post_batch(b"\n".join(map(raw, lines)), **header)

    told = [json.loads(one) for one in answer.text.splitlines()]
    assert [one["status"] for one in told] == [202, 422, 202, 202, 202, 429, 429, 429]
    assert {one["type"] for one in told[5:]} == {QUOTA_EXCEEDED}
    assert answer.headers["ratelimit"].startswith('"key";r=0;')
    assert int(answer.headers["retry-after"]) > 700
    refused(again)
    assert await door.road.count("task") == {"task": 4}


async def test_a_redis_that_is_away_refuses_nobody_and_lifts_no_limit(
    settings: Settings, road: Road, own_valkey: Valkey
) -> None:
    settings = replace(settings, redis_url=own_valkey.url)
    async with open_door(settings) as client:
        door = Door(client, road)
        header = await door.key("submit", rate="10/h")
        assert (await submit(door, header)).headers["ratelimit"].startswith('"key";r=9;')

        await asyncio.to_thread(own_valkey.stop)
        answers = [await submit(door, header) for _ in range(12)]

        assert [answer.status_code for answer in answers] == [202] * 10 + [429] * 2
        await asyncio.to_thread(own_valkey.start)

        # It has forgotten what was used, as it does in these tests.
        async def is_counted_there() -> bool:
            return (await submit(door, header)).status_code == 202

        await until(is_counted_there)


async def test_a_redis_that_hangs_costs_one_request_a_moment(
    settings: Settings, road: Road, own_valkey: Valkey
) -> None:
    async with open_door(replace(settings, redis_url=own_valkey.url)) as client:
        door = Door(client, road)
        header = await door.key("submit", rate="1000/h")
        await submit(door, header)
        os.kill(own_valkey.pid, signal.SIGSTOP)
        try:
            started = time.monotonic()
            answers = [await submit(door, header) for _ in range(20)]
            seconds = time.monotonic() - started
        finally:
            os.kill(own_valkey.pid, signal.SIGCONT)

    assert {answer.status_code for answer in answers} == {202}
    assert seconds < 5  # each of them would wait for that long


@pytest.mark.parametrize("url", ["", "redis://127.0.0.1:1/0"])
async def test_without_a_redis_each_process_counts_by_itself(settings: Settings, road: Road, url: str) -> None:
    async with open_door(replace(settings, redis_url=url)) as client:
        door = Door(client, road)
        header = await door.key("submit", rate="2/h")

        assert [(await submit(door, header)).status_code for _ in range(3)] == [202, 202, 429]
