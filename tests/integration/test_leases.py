"""Services that report later: a lease with a token, reports that count once, and leases that run out."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from aiohttp import web

from postroad import HttpStage, Pipeline, Settings, Task
from postroad.testing.traffic import until
from tests.integration.door import open_door, problem
from tests.integration.line import Line, open_line
from tests.integration.service import Called, Service, serving


@dataclass(frozen=True, slots=True)
class Desk:
    """A line whose first stage reports later, the service that does its work, and the intake that hears of it."""

    line: Line
    service: Service
    client: httpx2.AsyncClient

    async def handed(self, count: int = 1) -> list[Called]:
        """The requests with which work was handed over, once there are ``count``."""

        async def are_there() -> bool:
            return len(self.service.calls) >= count

        await until(are_there)
        return self.service.calls

    async def report(self, called: Called, how: str, **members: Any) -> httpx2.Response:
        """Report on the work of one request."""
        return await self.client.post(f"/v1/leases/{called.headers['postroad-lease']}:{how}", json=members)


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def open_desk(
    settings: Settings, answer: Answer | None = None, *, within: float = 60, retries: int = 5
) -> AsyncIterator[Desk]:
    async def accept(request: web.Request) -> web.Response:
        return web.Response(status=202)

    async with serving(answer or accept) as service:
        road = Pipeline("road")
        road.add(
            "ride",
            HttpStage(service.url, completion="callback", callback_timeout=timedelta(seconds=within)),
            retries=retries,
        )

        @road.stage(after="ride")
        async def arrive(task: Task) -> Any:
            return task.results["ride"]

        settings = replace(settings, public_url="https://tasks.example.com/")
        async with open_line(settings, road) as line, open_door(settings) as client:
            line.work()
            yield Desk(line, service, client)


async def test_a_report_completes_the_stage(settings: Settings) -> None:
    async with open_desk(settings) as desk:
        (task_id,) = await desk.line.submit({"n": 1})
        (called,) = await desk.handed()

        token = called.headers["postroad-lease"]
        assert called.headers["postroad-callback"] == f"https://tasks.example.com/v1/leases/{token}"
        assert json.loads(called.body)["payload"] == {"n": 1}
        assert await desk.line.road.task(task_id, "status", "stage_status") == ("in_progress", "waiting_at_stage:ride")
        answer = await desk.report(called, "complete", result={"host": "n17"})
        assert (answer.status_code, answer.json()["stage_run"]) == (200, f"{task_id}/ride")

        assert await desk.line.are_finished() == {"completed": 1}
        run = await desk.line.run_of(task_id, "arrive")
        assert run is not None
        assert run.result == {"host": "n17"}
        ride = await desk.line.run_of(task_id, "ride")
        assert ride is not None
        assert (ride.status, ride.attempts) == ("done", 1)
        journey = [one for one in await desk.line.events(task_id) if one.endswith(":ride")]
        assert journey[-4:] == ["StageHanded:ride", "StageReported:ride", "StageRequested:ride", "StageCompleted:ride"]
        assert token not in str(await desk.line.road.ask("select * from postroad.stage_run"))

        again = await desk.report(called, "complete", result={"host": "n17"})
        assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
        problem(await desk.report(called, "fail", reason="no"), 409, "refused")
        assert await desk.line.violated() == {}


async def test_a_report_may_come_before_the_answer_to_the_request(settings: Settings) -> None:
    async def report_at_once(request: web.Request) -> web.Response:
        answer = await client.post(f"/v1/leases/{request.headers['postroad-lease']}:complete", json={"result": [7]})
        assert answer.status_code == 200, answer.text
        # What it says afterwards does not matter any more.
        return web.Response(status=500)

    async with open_desk(settings, report_at_once) as desk:
        client = desk.client
        tasks = await desk.line.submit(*range(5))

        assert await desk.line.are_finished() == {"completed": 5}
        for task_id in tasks:
            run = await desk.line.run_of(task_id, "ride")
            assert run is not None
            assert (run.status, run.attempts, run.result) == ("done", 1, [7])
        assert len(desk.service.calls) == 5


async def test_a_reported_failure_is_tried_again_or_is_dead(settings: Settings) -> None:
    async with open_desk(settings) as desk:
        (task_id,) = await desk.line.submit({})
        (first,) = await desk.handed()
        assert (await desk.report(first, "fail", reason="no horse", after=0.1)).status_code == 200
        _, second = await desk.handed(2)
        assert second.headers["postroad-lease"] != first.headers["postroad-lease"]
        assert second.headers["idempotency-key"] == first.headers["idempotency-key"]
        assert second.headers["postroad-attempt"] == "2"
        assert (await desk.report(second, "fail", reason="no road", retry=False)).status_code == 200

        assert await desk.line.are_finished() == {"failed": 1}

        assert await desk.line.letter(task_id) == ("no road", None, 2)
        rows = await desk.line.road.ask(
            "select data ->> 'reason' from postroad.outbox where type = 'StageFailed' and task_id = :id", id=task_id
        )
        assert rows == [("no horse",)]
        assert await desk.line.violated() == {}


async def test_a_lease_that_runs_out_is_lost_and_the_work_handed_out_anew(settings: Settings) -> None:
    async with open_desk(settings, within=1, retries=1) as desk:
        (task_id,) = await desk.line.submit({})
        first, second = await desk.handed(2)

        body = problem(await desk.report(first, "complete", result=1), 404, "not-found")
        assert "handed out anew" in body["detail"]
        assert second.headers["postroad-attempt"] == "2"

        assert await desk.line.are_finished() == {"failed": 1}
        reason, _, attempts = await desk.line.letter(task_id)
        assert (reason, attempts) == ("its service has not reported within 0:00:01", 2)
        problem(await desk.report(second, "complete", result=1), 409, "refused")
        assert await desk.line.road.task(task_id, "retry_count") == (1,)
        assert await desk.line.violated() == {}


async def test_a_lease_can_be_extended(settings: Settings) -> None:
    async with open_desk(settings, within=1.5) as desk:
        (task_id,) = await desk.line.submit({})
        (called,) = await desk.handed()
        answer = await desk.report(called, "extend", seconds=60)
        assert answer.status_code == 200, answer.text

        # Its entry comes back when it was to, and is put off.
        async def is_put_off() -> bool:
            ((left,),) = await desk.line.road.ask(
                "select extract(epoch from now() - started_at) from postroad.stage_run where stage = 'ride'"
            )
            return float(left) > 2.5

        await until(is_put_off)
        assert len(desk.service.calls) == 1
        assert (await desk.report(called, "complete", result=3)).status_code == 200
        assert await desk.line.are_finished() == {"completed": 1}
        run = await desk.line.run_of(task_id, "ride")
        assert run is not None
        assert (run.attempts, run.result) == (1, 3)


async def test_many_that_report_at_once_count_once(settings: Settings) -> None:
    async with open_desk(settings) as desk:
        await desk.line.submit({})
        (called,) = await desk.handed()

        answers = await asyncio.gather(*(desk.report(called, "complete", result=n) for n in range(10)))

        assert {answer.status_code for answer in answers} == {200}
        assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1
        assert await desk.line.are_finished() == {"completed": 1}
        rows = await desk.line.road.ask("select count(*) from postroad.outbox where type = 'StageReported'")
        assert rows == [(1,)]


async def test_a_report_for_a_task_that_was_cancelled_is_refused(settings: Settings) -> None:
    async with open_desk(settings) as desk:
        (task_id,) = await desk.line.submit({})
        (called,) = await desk.handed()
        assert (await desk.client.post(f"/v1/tasks/{task_id}/cancel")).status_code == 200

        body = problem(await desk.report(called, "complete"), 409, "refused")

        assert "cancelled" in body["detail"]
        problem(await desk.report(called, "extend"), 409, "refused")


@pytest.mark.parametrize("how", ["complete", "fail", "extend"])
async def test_a_token_that_was_never_given_is_unknown(how: str, settings: Settings) -> None:
    async with open_desk(settings) as desk:
        problem(await desk.client.post(f"/v1/leases/x{'y' * 5000}%00%ff:{how}", json={}), 404, "not-found")


@pytest.mark.parametrize(
    ("how", "members"),
    [
        ("complete", {"outcome": 1}),
        ("fail", {"reason": 7}),
        ("fail", {"retry": "no"}),
        ("fail", {"after": -1}),
        ("fail", {"after": 1e12}),
        ("extend", {"seconds": True}),
        ("extend", {"seconds": 0}),
    ],
)
async def test_a_report_that_says_nothing_we_know_changes_nothing(
    how: str, members: dict[str, Any], settings: Settings
) -> None:
    async with open_desk(settings) as desk:
        await desk.line.submit({})
        (called,) = await desk.handed()

        problem(await desk.report(called, how, **members), 422)

        run = await desk.line.road.ask("select status, answer from postroad.stage_run")
        assert run == [("waiting", None)]


async def test_a_service_that_does_not_take_the_work_is_tried_again(settings: Settings) -> None:
    answers = iter([500, 200, 202])

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=next(answers))

    async with open_desk(settings, answer) as desk:
        (task_id,) = await desk.line.submit({})
        calls = await desk.handed(3)
        assert [called.headers["postroad-attempt"] for called in calls] == ["1", "2", "3"]
        assert (await desk.report(calls[2], "complete")).status_code == 200

        assert await desk.line.are_finished() == {"completed": 1}
        rows = await desk.line.road.ask(
            "select data ->> 'reason' from postroad.outbox where type = 'StageFailed' and task_id = :id"
            " order by position", id=task_id,
        )  # fmt: skip
        assert [reason for (reason,) in rows] == [
            "500 Internal Server Error",
            "the answer is 200; a service that reports later answers 202 first",
        ]
        assert await desk.line.violated() == {}


async def test_a_worker_that_dies_after_it_handed_work_over_loses_nothing(settings: Settings) -> None:
    async with open_desk(replace(settings, lease=timedelta(seconds=1))) as desk:
        (worker,) = desk.line.workers
        (task_id,) = await desk.line.submit({})
        (called,) = await desk.handed()
        await desk.line.kill(worker)
        assert (await desk.report(called, "complete", result=1)).status_code == 200
        desk.line.work()

        assert await desk.line.are_finished() == {"completed": 1}
        run = await desk.line.run_of(task_id, "ride")
        assert run is not None
        assert run.attempts == 1
        assert len(desk.service.calls) == 1
