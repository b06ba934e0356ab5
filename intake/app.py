"""The HTTP door as a Starlette application."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

from opentelemetry.trace import SpanKind
from redis.exceptions import RedisError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..core import broker, telemetry
from ..core.database import make_engine
from ..core.errors import SettingsError, first_line
from ..core.payload_schema import PayloadSchema
from ..core.settings import Settings
from ..outbox.process import Registration, Role
from ..outbox.submit import Accepted, Answer, Submission
from ..outbox.whereabouts import Locator
from .answers import jsonable
from .auth import Guard, caller_of, forbidden
from .batch import Batches
from .description import Description
from .endpoint import NDJSON, Body, Endpoint, Reply, ref
from .keyring import Caller, Keyring
from .members import PREFER, TRACEPARENT
from .operations import Operations
from .prefer import applied, preferred_wait
from .pressure import Pressure
from .problems import Problem, answer_http_exception, answer_problem, fault
from .quota import Quota
from .requests import KEY, LARGE, idempotency_key, read_body, submission
from .shield import HEADERS, Shield
from .submit import KeyHeld, Submitter, problem_of
from .transaction import as_problem
from .validation import PayloadSchemas
from .views import Views
from .watch import Full, Watch

log = logging.getLogger(__name__)

PATIENCE = 0.8
"""Seconds that Redis has to answer who asks whether we are ready: probes often give up after one."""

CLEAN_UP = 5.0
"""Seconds that a commit has to end when the server stops."""


@dataclass(frozen=True, slots=True)
class Foundation:
    """What the door shares with what is served beside it."""

    settings: Settings
    engine: AsyncEngine
    keyring: Keyring
    pressure: Pressure
    locator: Locator


class Beside(Protocol):
    """What is served beside the API, by the same processes."""

    def routes(self) -> Sequence[Route]:
        """Where."""

    async def close(self) -> None:
        """End what still runs; the server stops."""


def create_app(
    settings: Settings, *, name: str | None = None, beside: Callable[[Foundation], Beside] | None = None
) -> Starlette:
    """The application for one deployment; it connects when it is started. ``name`` is that of the process.

    ``beside`` makes what is served beside the API.

    Its ``state.stop()`` ends streams and waits. Call it when the server is to stop: servers wait for what is open
    before they tell the application.
    """
    engine = make_engine(settings, application="postroad intake")
    keyring = Keyring(engine, settings.schema, settings.auth)
    quota = Quota(settings)
    pressure = Pressure(settings, engine)
    guard = Guard(keyring, quota)
    watch = Watch(engine, settings.schema)
    locator = Locator(settings)
    views = Views(settings.schema, engine, watch, locator)
    door = Door(settings, engine, guard, pressure, views)
    operations = Operations(settings.schema, engine)
    endpoints = [*door.endpoints(), *views.endpoints(), *operations.endpoints()]
    description = Description(endpoints, keyring)
    other = beside(Foundation(settings, engine, keyring, pressure, locator)) if beside else None
    registration = Registration(engine, settings.schema, Role.INTAKE, name=name)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        watching = [asyncio.create_task(keyring.run()), asyncio.create_task(pressure.run())]
        async with registration:
            yield
        keyring.stop()
        pressure.stop()
        _, late = await asyncio.wait(watching, timeout=CLEAN_UP)
        for task in late:
            task.cancel()
        if other:
            await other.close()
        await watch.close()
        await door.close()
        await pressure.aclose()
        await locator.aclose()
        await quota.aclose()
        await engine.dispose()

    application = Starlette(
        routes=[
            *(guard.route(endpoint) for endpoint in endpoints),
            Route("/openapi.json", description.document, methods=["GET"]),
            Route("/docs", description.page, methods=["GET"]),
            *(other.routes() if other else ()),
        ],
        exception_handlers={
            Problem: answer_problem,
            HTTPException: answer_http_exception,
            Exception: _answer_fault,
        },
        middleware=[Middleware(Shield, within=settings.request_time)],
        lifespan=lifespan,
    )
    # Or a POST to /v1/tasks/ would be sent on to an address made of its Host, with the key and without TLS.
    application.router.redirect_slashes = False
    application.state.stop = watch.stop
    return application


class Door:
    """The endpoints that submit tasks, and those that say how the process is."""

    def __init__(self, settings: Settings, engine: AsyncEngine, guard: Guard, pressure: Pressure, views: Views) -> None:
        self._settings = settings
        self._engine = engine
        self._views = views
        self._pressure = pressure
        self._submitter = Submitter(engine, settings.schema)
        self._schemas = PayloadSchemas(engine, settings.schema)
        self._batches = Batches(settings, guard, pressure, self._schemas, self._submitter, self._let_in)

    def endpoints(self) -> list[Endpoint]:
        """All of them."""
        headers = {"traceparent": TRACEPARENT}
        return [
            Endpoint(
                "POST", "/v1/tasks", self.submit, "submit",
                {
                    202: Reply(
                        "It is in Postgres, and will travel.", ref("AcceptedTask"),
                        headers={
                            "Location": "where it is",
                            "traceparent": "its trace",
                            "Idempotent-Replayed": "true: it was accepted before, under the same key",
                        },
                    ),
                    200: Reply("With Prefer: wait, if it has ended within that: the task.", ref("Task")),
                },
                problems=(409, 422, 429, 503), headers=headers | {"Idempotency-Key": KEY, "Prefer": PREFER},
                body=Body(ref("NewTask"), example={"pipeline": "orders", "payload": {"sku": "n17"}}),
            ),
            Endpoint(
                "POST", "/v1/tasks:batch", self.submit_batch, "submit",
                {
                    200: Reply(
                        "An answer a line, in their order.", ref("BatchAnswer"), NDJSON,
                        headers={"Retry-After": "in how many seconds to send again the lines that are 409, 429 or 503"},
                    ),
                },
                problems=(429, 503), headers=headers, counts_lines=True,
                body=Body({"type": "string"}, media_type=NDJSON, example='{"pipeline": "orders", "payload": 1}\n'),
            ),
            Endpoint("GET", "/livez", self.livez, None, {200: Reply("It lives.", ref("Alive"))}),
            Endpoint(
                "GET", "/readyz", self.readyz, None,
                {200: Reply("It is ready.", ref("Ready")), 503: Reply("It is not.", ref("Ready"))},
            ),
        ]  # fmt: skip

    async def close(self) -> None:
        """End what is still being committed for callers that have gone."""
        await self._submitter.cancel(within=CLEAN_UP)

    async def submit(self, request: Request) -> Response:
        """Accept one task: 202 after the commit; the same key and body again, the same answer.

        With ``Prefer: wait=10`` 200 with the task, if it ends within so many seconds.
        """
        body = await read_body(request, media_type="application/json", limit=self._settings.body_limit)
        key, traceparent = idempotency_key(request), request.headers.get("traceparent")
        read = partial(submission, body, key=key, traceparent=traceparent, schemas=await self._current_schemas())
        asked = await asyncio.to_thread(read) if len(body) > LARGE else read()
        caller = caller_of(request)
        answer = await self._accept(self._let_in(asked, caller))
        if not isinstance(answer, Accepted):
            raise problem_of(answer)
        headers = {"Location": f"/v1/tasks/{answer.task_id}", "traceparent": answer.traceparent}
        if answer.is_replay:
            headers["Idempotent-Replayed"] = "true"
        # Whose key may only submit is told nothing of what becomes of it.
        if (wait := preferred_wait(request)) and "read" in caller.scopes:
            # If as many wait as may, this one does not: it has been accepted all the same.
            with contextlib.suppress(Full):
                has_ended = await self._views.wait(request, answer.task_id, wait)
                headers |= applied(wait)
                if has_ended:
                    return JSONResponse(jsonable(await self._views.find(answer.task_id, caller)), headers=headers)
        return JSONResponse(_accepted(answer), HTTPStatus.ACCEPTED, headers=headers)

    async def submit_batch(self, request: Request) -> Response:
        """Accept a task a line: 200 with an answer a line, in their order; a bad line does not spoil the rest.

        Lines are accepted as they come. Once some were, the answer is 200, whatever becomes of the rest.
        """
        return await self._batches.answer(request)

    async def livez(self, request: Request) -> Response:
        """200 while the event loop turns; asks no other server."""
        return JSONResponse({"status": "alive"})

    async def readyz(self, request: Request) -> Response:
        """200 if tasks can be accepted: if Postgres and its tables answer; else 503, and which does not.

        Names Redis too, but does not insist on it: without Redis tasks are accepted and wait in the outbox.
        """
        checks = {"postgres": await self._check_postgres(), "redis": await self._check_redis()}
        is_ready = checks["postgres"] == "ok"
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse({"status": "ready" if is_ready else "not ready", "checks": checks}, status)

    async def _current_schemas(self) -> Mapping[str, PayloadSchema]:
        try:
            return await self._schemas.current()
        except Exception as error:
            raise as_problem(error) from error

    def _let_in(self, asked: Submission, caller: Caller, beside: int = 0) -> Submission:
        """``asked`` as it is accepted from ``caller``, who has brought ``beside`` others like it before in one request.

        Raises a ``Problem``: 403 if the caller's key is not for this, 429 or 503 if there is too much work.
        """
        if not caller.may_use(asked.pipeline):
            raise forbidden(caller, asked.pipeline)
        if problem := self._pressure.problem(asked.pipeline, beside):
            raise problem
        return replace(asked, submitted_by=caller.actor) if caller.actor else asked

    async def _accept(self, asked: Submission) -> Answer | KeyHeld:
        name, attributes = f"{telemetry.SEND} {asked.pipeline}", telemetry.sending(asked.pipeline, asked.task_id)
        parent = telemetry.current(asked.traceparent)
        try:
            with telemetry.span(name, SpanKind.PRODUCER, parent, attributes) as span:
                answer = await self._submitter.submit(asked.traced(telemetry.current(parent)))
                if isinstance(answer, Accepted) and answer.is_replay:
                    span.set_attribute("messaging.message.id", str(answer.task_id))
                    span.set_attribute("postroad.replayed", True)
        except Exception as error:
            raise as_problem(error) from error
        self._note(answer)
        return answer

    def _note(self, answer: Answer | KeyHeld) -> None:
        if isinstance(answer, Accepted) and not answer.is_replay:
            self._pressure.note_accepted([answer.pipeline])

    async def _check_postgres(self) -> str:
        try:
            async with self._engine.connect() as connection:
                await connection.execute(text(f"select from {self._settings.schema}.task limit 0"))
        except Exception as error:
            return first_line(error)
        return "ok"

    async def _check_redis(self) -> str:
        try:
            clients = broker.Clients(self._settings, connections=1)
            async with asyncio.timeout(PATIENCE), aclosing(clients):
                for shard in range(self._settings.shards):
                    await clients.of(shard).ping()
        except TimeoutError:
            return f"no answer within {PATIENCE:g} s"
        except (RedisError, OSError, SettingsError) as error:
            return first_line(error)
        return "ok"


def _accepted(answer: Accepted) -> dict[str, Any]:
    return {
        "task_id": str(answer.task_id),
        "pipeline": answer.pipeline,
        "status": "pending",
        "created_at": answer.created_at.isoformat(),
        "trace_id": telemetry.trace_id(answer.traceparent),
    }


async def _answer_fault(request: Request, error: Exception) -> Response:
    # Outside of the Shield: Starlette has its last resort around everything.
    return fault(HEADERS).response()
