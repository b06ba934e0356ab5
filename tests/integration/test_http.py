"""Stages that are HTTP services: what is asked, what each answer comes to, and what a service that is away costs."""

import asyncio
import base64
import json
from collections import Counter
from typing import Any, NamedTuple
from uuid import UUID

import aiohttp
import pytest
from aiohttp import web

from postroad import HttpStage, Pipeline, Settings, Task
from postroad.intake.pause import set_paused
from postroad.stages.service import signature
from postroad.testing.traffic import until
from tests.integration.line import Line, numbers, open_line
from tests.integration.service import raw_service, serving

SECRET = "whsec_" + base64.b64encode(b"a secret of at least 24 bytes").decode()
OTHER = "whsec_" + base64.b64encode(b"another secret, as long as that").decode()


def road_to(url: str, *, retries: int = 5, timeout: float = 10, **options: Any) -> Pipeline:
    road = Pipeline("road")
    road.add("ride", HttpStage(url, **options), retries=retries, timeout=timeout)
    return road


async def answer_done(request: web.Request) -> web.Response:
    return web.json_response({"host": "n17"})


class StageRow(NamedTuple):
    """What is recorded of the one stage."""

    paused: bool
    trouble: str | None
    rests: bool


async def the_stage(line: Line) -> StageRow:
    (row,) = await line.road.ask("select paused, trouble, resting_until is not null from postroad.stage")
    return StageRow(*row)


async def outcome(line: Line, task_id: UUID) -> tuple[str, int, str]:
    """How the stage run stands, after how many attempts, and the last reason in the journey."""

    async def has_one() -> bool:
        return await line.run_of(task_id, "ride") is not None

    await until(has_one)
    run = await line.run_of(task_id, "ride")
    assert run is not None
    rows = await line.road.ask(
        "select data ->> 'reason' from postroad.outbox where task_id = :id and stage = 'ride' order by position desc",
        id=task_id,
    )
    return run.status, run.attempts, rows[0][0] or ""


# What is asked


async def test_the_request_tells_the_task_and_the_answer_is_the_result(settings: Settings) -> None:
    async with serving(answer_done) as service:
        road = Pipeline("road")

        @road.stage()
        async def saddle(task: Task) -> Any:
            return {"horse": "grey"}

        road.add(
            "ride",
            HttpStage(service.url, secrets=(SECRET, OTHER), headers={"authorization": "Bearer ${RIDE_TOKEN}"}),
            after="saddle",
            retries=7,
            timeout=10,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RIDE_TOKEN", "t0k3n")
            async with open_line(settings, road) as line:
                line.work()
                (task_id,) = await line.submit({"big": 2**80, "text": "ü"})
                assert await line.are_finished() == {"completed": 1}
                run = await line.run_of(task_id, "ride")
                assert run is not None
                assert run.result == {"host": "n17"}
                ((traceparent, created_at),) = await line.road.ask("select traceparent, created_at from postroad.task")

        (called,) = service.calls
        document = json.loads(called.body)
        assert document == {
            "task_id": str(task_id),
            "pipeline": "road",
            "stage": "ride",
            "idempotency_key": f"{task_id}/ride",
            "created_at": created_at.isoformat(),
            "labels": {},
            "payload": {"big": 2**80, "text": "ü"},
            "results": {"saddle": {"horse": "grey"}},
        }
        told = called.headers
        assert told["idempotency-key"] == f'"{task_id}/ride"'
        assert (told["ce-specversion"], told["ce-id"], told["ce-source"]) == (
            "1.0",
            f"{task_id}/ride",
            "/pipelines/road",
        )
        assert (told["ce-type"], told["ce-subject"]) == ("postroad.stage.ride", str(task_id))
        assert (told["postroad-attempt"], told["postroad-max-attempts"], told["postroad-timeout"]) == ("1", "8", "10")
        assert told["traceparent"] == traceparent
        assert told["authorization"] == "Bearer t0k3n"
        assert told["content-type"] == "application/json"
        secrets = [base64.b64decode(secret.removeprefix("whsec_")) for secret in (SECRET, OTHER)]
        assert (
            told["webhook-signature"].split()
            == signature(told["webhook-id"], int(told["webhook-timestamp"]), called.body, secrets)[
                "webhook-signature"
            ].split()
        )


async def test_the_key_is_the_same_over_all_attempts(settings: Settings) -> None:
    answers = iter([500, 500, 200])

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=next(answers))

    async with serving(answer) as service, open_line(settings, road_to(service.url)) as line:
        line.work()
        (task_id,) = await line.submit({})

        assert await line.are_finished() == {"completed": 1}

        keys = {called.headers["idempotency-key"] for called in service.calls}
        assert keys == {f'"{task_id}/ride"'}
        assert [called.headers["postroad-attempt"] for called in service.calls] == ["1", "2", "3"]
        assert len({called.body for called in service.calls}) == 1


# What an answer comes to


@pytest.mark.parametrize(
    ("status", "headers", "body", "expected"),
    [
        (200, {"content-type": "application/json"}, b'{"a": 1}', ("done", 1, "")),
        (200, {"content-type": "text/html"}, b"<p>fine", ("done", 1, "")),
        (202, {}, b"", ("done", 1, "")),
        (204, {}, b"", ("done", 1, "")),
        (302, {"location": "http://user:pw@elsewhere/x"}, b"", ("dead", 1, "'http://***@elsewhere/x'")),
        (400, {}, b"no such user", ("dead", 1, "400 Bad Request: no such user")),
        (
            422,
            {"content-type": "application/problem+json"},
            b'{"title": "Invalid", "detail": "no user"}',
            ("dead", 1, "422 Unprocessable Entity: Invalid: no user"),
        ),
        (404, {}, b"", ("failed", 1, "404 Not Found")),
        (409, {"retry-after": "77"}, b"", ("failed", 1, "409 Conflict")),
        (500, {}, b"oh", ("failed", 1, "500 Internal Server Error: oh")),
        (500, {"postroad-retry": "no"}, b"never", ("dead", 1, "500 Internal Server Error: never")),
        (422, {"postroad-retry": "yes"}, b"later", ("failed", 1, "422 Unprocessable Entity: later")),
        (401, {}, b"expired", ("failed", 1, "401 Unauthorized: expired")),
        (503, {}, b"", ("failed", 1, "503 Service Unavailable")),
        (429, {"retry-after": "50"}, b"", ("snoozed", 0, "429 Too Many Requests")),
        (410, {}, b"", ("snoozed", 0, "410 Gone")),
        (200, {"content-type": "application/json"}, b'{"a": ', ("failed", 1, "the answer 200 is no JSON")),
        (200, {"content-type": "application/json"}, b'"\\u0000"', ("failed", 1, "the answer 200 is no JSON")),
        (
            200,
            {"content-type": "application/json"},
            b'"' + b"x" * (50 * 1024 * 1024) + b'"',
            ("dead", 1, "the answer has more than 1,048,576 bytes"),
        ),
    ],
    ids=lambda value: None if isinstance(value, bytes | dict) else str(value)[:40],
)
async def test_an_answer_is_an_outcome(
    status: int, headers: dict[str, str], body: bytes, expected: tuple[str, int, str], settings: Settings
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, headers=headers, body=body)

    async with serving(answer) as service, open_line(settings, road_to(service.url)) as line:
        line.work()
        (task_id,) = await line.submit({})

        came_to = await outcome(line, task_id)

        assert came_to[:2] == expected[:2]
        assert expected[2] in came_to[2]
        assert "pw" not in came_to[2]


@pytest.mark.parametrize("kind", ["half a body", "garbage", "a byte a second", "silence"])
async def test_a_service_that_answers_badly_is_tried_again_within_its_timeout(kind: str, settings: Settings) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"

    async def answer(writer: asyncio.StreamWriter) -> None:
        if kind == "half a body":
            writer.write(head + b'{"a": ')
        elif kind == "garbage":
            writer.write(b"\x16\x03\x01 nothing of HTTP\r\n\r\n")
        elif kind == "a byte a second":
            writer.write(head)
            for _ in range(100):
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.2)
        else:
            await asyncio.sleep(20)

    async with raw_service(answer) as url, open_line(settings, road_to(url, timeout=1)) as line:
        line.work()
        (task_id,) = await line.submit({})

        status, attempts, reason = await outcome(line, task_id)

        assert (status, attempts) == ("failed", 1)
        assert {"half a body": "broke off", "garbage": ""}.get(kind, "no answer within 1 s") in reason


# A service that is away


async def test_a_service_that_is_away_costs_no_attempt_and_is_found_back(settings: Settings) -> None:
    async with serving(answer_done) as service, open_line(settings, road_to(service.url)) as line:
        await service.stop()
        line.work()
        tasks = await line.submit(*numbers(150))

        async def rests() -> bool:
            return bool((await the_stage(line)).rests)

        await until(rests)
        assert "cannot connect to 127.0.0.1" in ((await the_stage(line)).trouble or "")
        await service.start()

        assert await line.are_finished() == {"completed": 150}
        # The one that found the service away while it was believed to be well.
        assert await line.road.ask("select count(*) from postroad.outbox where type = 'StageFailed'") == [(1,)]
        row = await the_stage(line)
        assert (row.rests, row.trouble) == (False, None)
        assert Counter(json.loads(one.body)["task_id"] for one in service.calls) == {str(task): 1 for task in tasks}


async def test_while_a_stage_rests_one_attempt_over_all_processes_sees_whether_its_service_is_back(
    settings: Settings,
) -> None:
    is_well = False

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=200 if is_well else 503)

    async with serving(answer) as service, open_line(settings, road_to(service.url)) as line:
        workers = [line.work() for _ in range(3)]
        await line.submit(0)

        async def have_heard() -> bool:
            breakers = [worker._consumers[0]._breaker for worker in workers]
            return all(breaker is not None and not breaker.is_closed for breaker in breakers)

        await until(have_heard)
        seen = len(service.calls)
        await line.submit(*range(1, 100))

        async def have_tried() -> bool:
            return len(service.calls) >= seen + 2

        await until(have_tried)
        # Each call made it rest once more; the last may not have been recorded yet.
        ((rests,),) = await line.road.ask("select rests from postroad.stage")
        assert len(service.calls) <= rests + 1
        is_well = True

        assert await line.are_finished() == {"completed": 100}


async def test_a_stage_whose_service_fails_on_most_rests(settings: Settings) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=500)

    async with serving(answer) as service, open_line(settings, road_to(service.url, retries=3)) as line:
        line.work()
        await line.submit(*range(60))

        async def rests() -> bool:
            return bool((await the_stage(line)).rests)

        await until(rests)
        calls = len(service.calls)
        await asyncio.sleep(1.5)
        assert len(service.calls) == calls


async def test_what_a_service_asks_for_throttles_the_whole_stage(settings: Settings) -> None:
    async def answer(request: web.Request) -> web.Response:
        if len(service.calls) == 1:
            return web.Response(status=429, headers={"retry-after": "2"})
        return web.Response()

    async with serving(answer) as service, open_line(settings, road_to(service.url)) as line:
        clock = asyncio.get_running_loop().time
        line.work()
        await line.submit(0)
        await until(lambda: _is(len(service.calls) == 1))
        began = clock()
        await line.submit(*range(1, 20))

        assert await line.are_finished() == {"completed": 20}

        assert clock() - began >= 1.5
        assert len(service.calls) == 21
        assert (await line.road.ask("select max(attempts) from postroad.stage_run"))[0][0] == 1


async def test_a_service_that_is_gone_pauses_its_stage(settings: Settings) -> None:
    is_gone = True

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=410 if is_gone else 200)

    async with serving(answer) as service, open_line(settings, road_to(service.url)) as line:
        line.work()
        await line.submit(*range(5))

        async def is_paused() -> bool:
            return bool((await the_stage(line)).paused)

        await until(is_paused)
        assert "410 Gone" in ((await the_stage(line)).trouble or "")

        async def have_all_been_told() -> bool:
            snoozed = await line.road.ask("select count(*) from postroad.stage_run where status = 'snoozed'")
            return snoozed == [(len(service.calls),)]

        await until(have_all_been_told)
        is_gone = False
        async with line.road.engine.begin() as connection:
            await set_paused(connection, "road", "ride", line.settings.schema, paused=False, by="ada")

        assert await line.are_finished() == {"completed": 5}
        assert (await the_stage(line)).trouble is None


async def _is(value: bool) -> bool:
    return value


# Addresses that must not be called


async def test_a_name_that_leads_to_the_metadata_of_a_cloud_is_not_called(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Resolver:
        async def resolve(self, host: str, port: int, family: int) -> list[dict[str, Any]]:
            return [{"hostname": host, "host": "169.254.169.254", "port": port, "family": 2, "proto": 6, "flags": 0}]

        async def close(self) -> None: ...

    monkeypatch.setattr(aiohttp, "ThreadedResolver", Resolver)
    async with open_line(settings, road_to("http://innocent.example/latest/meta-data/")) as line:
        line.work()
        (task_id,) = await line.submit({})

        assert (
            "innocent.example leads to 169.254.169.254, which must not be called" in (await outcome(line, task_id))[2]
        )


async def test_a_service_is_not_called_for_longer_than_its_worker_lives(settings: Settings) -> None:
    """Its connections are closed with the worker: a warning about one left open fails the test."""
    async with serving(answer_done) as service, open_line(settings, road_to(service.url)) as line:
        worker = line.work()
        await line.submit(*range(3))
        assert await line.are_finished() == {"completed": 3}
        await line.stop(worker)
