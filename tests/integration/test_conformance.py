"""A conformance run tells services that keep to the contract from those that do not, by the very case."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from email.message import Message
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from examples.polyglot.book import is_signed
from postroad import CommandStage, HttpStage, Pipeline
from postroad.cli.listener import listening
from postroad.core.errors import DeclarationError, UnreachableError
from postroad.core.pipeline import Stage
from postroad.stages import conformance
from postroad.stages.conformance import Check, ProgramConformance, ServiceConformance, Work
from tests.integration.service import serving

KEY = b"k" * 24
SECRET = "whsec_" + base64.b64encode(KEY).decode()
WORK = Work({"item": "tea"})
TIMEOUT = timedelta(seconds=20)

SIGNATURES = {"two signatures", "no signature", "wrong secret", "changed body", "old timestamp", "future timestamp"}
WITHOUT_SECRET = dict.fromkeys(SIGNATURES, "skipped")


@dataclass
class Counter:
    """A service that numbers the keys that it has seen, with one ``flaw``."""

    flaw: str = ""
    numbers: dict[str, int] = field(default_factory=dict)
    running: int = 0
    second: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One delivery."""
        body = await request.read()
        if self.flaw != "trusts everybody" and not self._is_signed(request, body):
            return web.Response(status=400 if self.flaw == "answers 400 to strangers" else 401)
        task = json.loads(body)
        case = task["labels"]["conformance"]
        self.running += 1
        try:
            return await self._work(request, task, case)
        finally:
            self.running -= 1

    async def _work(self, request: web.Request, task: dict[str, Any], case: str) -> web.StreamResponse:
        if task["payload"] != WORK.payload:
            return web.Response(status={"fails on the unfit": 500, "takes anything": 200}.get(self.flaw, 422))
        match self.flaw, case:
            case "hangs on slow clients", "slow":
                await asyncio.sleep(5)
            case "drops large bodies", "large":
                assert request.transport is not None
                request.transport.abort()
            case "refuses large bodies", "large":
                return web.Response(status=413)
            case "leads elsewhere", _:
                return web.Response(status=302, headers={"location": "http://elsewhere/"})
            case "answers garbage", _:
                return web.Response(content_type="application/json", body=b"{")
            case (
                ("cannot do two at once" | "rejects the second at once" | "says wait to the second at once"),
                "twins",
            ):
                if self.running > 1:
                    self.second.set()
                    return web.Response(status={"c": 500, "r": 422, "s": 409}[self.flaw[0]])
                await self.second.wait()
        known = {} if self.flaw == "forgets" else self.numbers
        return web.json_response(known.setdefault(task["idempotency_key"], self._next()))

    def _next(self) -> int:
        self.numbers[f"number {len(self.numbers)}"] = 0
        return len(self.numbers)

    def _is_signed(self, request: web.Request, body: bytes) -> bool:
        headers = Message()
        for name, value in request.headers.items():
            headers[name] = value
        signed_at = float(headers.get("webhook-timestamp", 0))
        now = signed_at if self.flaw == "does not look at the time" else time.time()
        if self.flaw == "looks at one signature":
            first = headers.get("webhook-signature", "").split(" ")[0]
            del headers["webhook-signature"]
            headers["webhook-signature"] = first
        return is_signed(headers, body, KEY, now)


@pytest.fixture(autouse=True)
def _short_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "SLOW", timedelta(seconds=0.1))


def stage_of(handler: HttpStage | CommandStage, timeout: timedelta = TIMEOUT) -> Stage:
    """A stage whose work that does."""
    pipeline = Pipeline("road")
    pipeline.add("ride", handler, timeout=timeout)
    return pipeline.graph()["ride"]


async def verdicts(checks: AsyncIterator[Check]) -> dict[str, str]:
    """What each case came to, of those that are not well."""
    return {check.case: str(check.verdict) async for check in checks if check.verdict != "ok"}


@pytest.mark.parametrize(
    ("flaw", "expected"),
    [
        ("", {}),
        ("forgets", {"repeat": "failed", "twins": "failed"}),
        (
            "trusts everybody",
            dict.fromkeys(SIGNATURES - {"two signatures"}, "failed") | {"future timestamp": "warning"},
        ),
        (
            "answers 400 to strangers",
            dict.fromkeys(("no signature", "wrong secret", "changed body"), "failed")
            | {"old timestamp": "warning", "future timestamp": "warning"},
        ),
        ("does not look at the time", {"old timestamp": "failed", "future timestamp": "warning"}),
        ("looks at one signature", {"two signatures": "failed"}),
        ("fails on the unfit", {"unfit payload": "warning"}),
        ("takes anything", {"unfit payload": "warning"}),
        ("drops large bodies", {"large": "failed"}),
        ("refuses large bodies", {}),
        ("hangs on slow clients", {"slow client": "failed"}),
        ("cannot do two at once", {"twins": "warning"}),
        ("rejects the second at once", {"twins": "failed"}),
        ("says wait to the second at once", {}),
        (
            "leads elsewhere",
            {"delivery": "failed", "repeat": "skipped", "twins": "skipped", "two signatures": "failed"},
        ),
        (
            "answers garbage",
            {"delivery": "failed", "repeat": "skipped", "twins": "skipped", "two signatures": "failed"}
            | {"large": "failed", "slow client": "warning"},
        ),
    ],
)  # fmt: skip
async def test_a_flaw_of_a_service_is_told_by_its_case(flaw: str, expected: dict[str, str]) -> None:
    async with serving(Counter(flaw).answer) as service:
        declared = HttpStage(service.url, secrets=SECRET)
        stage = stage_of(declared, timedelta(seconds=2) if flaw == "hangs on slow clients" else TIMEOUT)

        assert await verdicts(ServiceConformance(stage, declared, WORK).checks()) == expected


async def test_requests_are_those_of_a_worker() -> None:
    async with serving(Counter("trusts everybody").answer) as service:
        declared = HttpStage(service.url, headers={"authorization": "Bearer t0k3n"})
        checks = ServiceConformance(stage_of(declared), declared, Work({"item": "tea"}, {"before": 1})).checks()

        assert await verdicts(checks) == WITHOUT_SECRET

        first, again = service.calls[:2]
        assert first.body == again.body
        assert json.loads(first.body)["results"] == {"before": 1}
        assert (first.headers["postroad-attempt"], again.headers["postroad-attempt"]) == ("1", "2")
        assert first.headers["idempotency-key"] == again.headers["idempotency-key"]
        assert {call.headers["authorization"] for call in service.calls} == {"Bearer t0k3n"}
        assert {call.headers["ce-type"] for call in service.calls} == {"postroad.stage.ride"}
        assert max(len(call.body) for call in service.calls) > 1024 * 1024


async def test_a_service_that_is_not_there_or_must_not_be_called_is_no_case(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = HttpStage("http://127.0.0.1:1/?token=t0k3n")
    with pytest.raises(UnreachableError, match=r"^http://127.0.0.1:1/\?\*\*\* does not answer: cannot connect"):
        await verdicts(ServiceConformance(stage_of(declared), declared, WORK).checks())

    class Resolver:
        async def resolve(self, host: str, port: int, family: int) -> list[dict[str, Any]]:
            return [{"hostname": host, "host": "169.254.169.254", "port": port, "family": 2, "proto": 6, "flags": 0}]

        async def close(self) -> None: ...

    monkeypatch.setattr(aiohttp, "ThreadedResolver", Resolver)
    declared = HttpStage("http://innocent.example/")
    with pytest.raises(DeclarationError, match=r"innocent\.example leads to 169\.254\.169\.254"):
        await verdicts(ServiceConformance(stage_of(declared), declared, WORK).checks())


# Services that report later


@asynccontextmanager
async def reporting(flaw: str) -> AsyncIterator[ServiceConformance]:
    """A run against a service that takes work and reports on it, with one ``flaw``."""
    reporters: set[asyncio.Task[None]] = set()
    seen: set[str] = set()

    flaws: dict[str, tuple[str, dict[str, Any]]] = {
        "fails": (":fail", {"reason": "no horses"}),
        "reports badly": (":complete", {"outcome": 7}),
    }
    good = flaws.get(flaw, (":complete", {"result": "rode"}))

    async def report(url: str, payload: Any) -> None:
        how, body = good if payload == WORK.payload else (":fail", {"retry": False})
        async with aiohttp.ClientSession() as client, client.post(url + ":extend", json={"seconds": 60}) as extended:
            assert extended.status == 200
            async with client.post(url + how, json=body) as answer:
                assert answer.status == (422 if "outcome" in body else 200)

    async def take(request: web.Request) -> web.Response:
        key, payload = request.headers["idempotency-key"], (await request.json())["payload"]
        if flaw != "is silent" and not (flaw == "reports once for each key" and key in seen):
            reporter = asyncio.create_task(report(request.headers["postroad-callback"], payload))
            reporters.add(reporter)
        seen.add(key)
        return web.Response(status=200 if flaw == "answers 200" else 202)

    async with serving(take) as service, listening(("127.0.0.1", 0), None) as listener:
        declared = HttpStage(service.url, completion="callback")
        yield ServiceConformance(
            stage_of(declared),
            declared,
            WORK,
            reports=listener,
            public_url=listener.url,
            report_within=timedelta(seconds={"is silent": 0.1, "reports once for each key": 2}.get(flaw, 20)),
        )
        await asyncio.gather(*reporters)


@pytest.mark.parametrize(
    ("flaw", "delivery", "repeat"),
    [
        ("", None, None),
        ("fails", "failed", "skipped"),
        ("reports badly", "failed", "skipped"),
        ("is silent", "failed", "skipped"),
        ("answers 200", "failed", "skipped"),
        ("reports once for each key", None, "failed"),
    ],
)
async def test_a_service_that_reports_later_is_waited_for(flaw: str, delivery: str | None, repeat: str | None) -> None:
    async with reporting(flaw) as tried:
        came = await verdicts(tried.checks())

        assert (came.get("delivery"), came.get("repeat"), came["twins"]) == (delivery, repeat, "skipped")
        if not flaw:
            assert came == {"twins": "skipped"} | WITHOUT_SECRET


# Programs


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ('case $(cat) in *"no task"*) exit 65;; esac; echo "{\\"key\\": \\"$IDEMPOTENCY_KEY\\"}"', {}),
        ("echo $$", {"repeat": "failed", "twins": "failed", "unfit payload": "warning"}),
        (
            "exit 1",
            {"delivery": "failed", "repeat": "skipped", "twins": "skipped", "large": "failed"}
            | {"unfit payload": "warning"},
        ),
        ("echo no JSON", {"delivery": "failed", "repeat": "skipped", "twins": "skipped"}),
    ],
)
async def test_a_flaw_of_a_program_is_told_by_its_case(program: str, expected: dict[str, str]) -> None:
    declared = CommandStage(["bash", "-c", program])

    assert await verdicts(ProgramConformance(stage_of(declared), declared, WORK).checks()) == expected
