"""The HTTP door as a Starlette application."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any
from uuid import UUID

from opentelemetry.trace import SpanKind
from redis.exceptions import RedisError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..core import broker, telemetry
from ..core.database import is_transient, make_engine
from ..core.errors import first_line
from ..core.settings import Settings
from ..outbox.audit import journey
from .lookup import find_task
from .problems import Fault, Problem, answer_http_exception, answer_problem, invalid, unavailable
from .requests import idempotency_key, lines, ndjson, read_body, submission
from .submit import Accepted, Answer, KeyTaken, Submission, Submitter, TaskTaken, UnknownPipeline

log = logging.getLogger(__name__)


def create_app(settings: Settings) -> Starlette:
    """The application for one deployment; it connects when it is started."""
    engine = make_engine(settings, application="postroad intake")
    door = Door(settings, engine)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await engine.dispose()

    return Starlette(
        routes=[
            Route("/v1/tasks", door.submit, methods=["POST"]),
            Route("/v1/tasks:batch", door.submit_batch, methods=["POST"]),
            Route("/v1/tasks/{task_id}", door.show, methods=["GET"]),
            Route("/v1/tasks/{task_id}/events", door.events, methods=["GET"]),
            Route("/livez", door.livez, methods=["GET"]),
            Route("/readyz", door.readyz, methods=["GET"]),
        ],
        exception_handlers={
            Problem: answer_problem,
            HTTPException: answer_http_exception,
            Exception: _answer_fault,
        },
        lifespan=lifespan,
    )


class Door:
    """The endpoints."""

    def __init__(self, settings: Settings, engine: AsyncEngine) -> None:
        self._settings = settings
        self._engine = engine
        self._submitter = Submitter(engine, settings.schema)

    async def submit(self, request: Request) -> Response:
        """Accept one task: 202 after the commit; the same key and body again, the same answer."""
        body = await read_body(request, media_type="application/json", limit=self._settings.body_limit)
        asked = submission(body, key=idempotency_key(request), traceparent=request.headers.get("traceparent"))
        answer = await self._accept(asked)
        if not isinstance(answer, Accepted):
            raise _refusal(answer)
        headers = {"Location": f"/v1/tasks/{answer.task_id}", "traceparent": answer.traceparent}
        if answer.is_replay:
            headers["Idempotent-Replayed"] = "true"
        return JSONResponse(_accepted(answer), HTTPStatus.ACCEPTED, headers=headers)

    async def submit_batch(self, request: Request) -> Response:
        """Accept a task a line: 200 with an answer a line, in their order; a bad line does not spoil the rest."""
        body = await read_body(request, media_type="application/x-ndjson", limit=self._settings.batch_limit)
        traceparent = request.headers.get("traceparent")
        answers: list[dict[str, Any]] = []
        waiting: list[tuple[int, Submission]] = []
        for number, line in lines(body):
            if number % 500 == 0:
                await asyncio.sleep(0)  # others want to be served while we read 10,000 lines
            answers.append({"line": number})
            try:
                waiting.append((len(answers) - 1, submission(line, key=None, traceparent=traceparent, allow_key=True)))
            except Problem as problem:
                answers[-1] |= problem.body()
        try:
            accepted = await self._submitter.submit_many([asked for _, asked in waiting])
        except Exception as error:
            raise _translated(error) from error
        for (place, _), answer in zip(waiting, accepted, strict=True):
            if isinstance(answer, Accepted):
                answers[place] |= _accepted(answer) | {"status": int(HTTPStatus.ACCEPTED)}
                answers[place] |= {"replayed": True} if answer.is_replay else {}
            else:
                answers[place] |= _refusal(answer).body()
        return Response(ndjson(answers), media_type="application/x-ndjson")

    async def show(self, request: Request) -> Response:
        """One task with its stage runs."""
        task_id = _path_id(request)
        try:
            async with self._engine.connect() as connection:
                task = await find_task(connection, task_id, self._settings.schema)
        except Exception as error:
            raise _translated(error) from error
        if task is None:
            raise _no_task(task_id)
        return JSONResponse(_jsonable(task))

    async def events(self, request: Request) -> Response:
        """The journey of one task, oldest first."""
        task_id = _path_id(request)
        try:
            async with self._engine.connect() as connection:
                steps = await journey(connection, task_id, self._settings.schema)
                is_known = bool(steps) or await find_task(connection, task_id, self._settings.schema)
        except Exception as error:
            raise _translated(error) from error
        if not is_known:
            raise _no_task(task_id)
        events = [
            {
                "position": step.position,
                "type": f"{step.type}:{step.stage}" if step.stage else step.type,
                "stage": step.stage,
                "data": step.data,
                "occurred_at": step.occurred_at.isoformat(),
            }
            for step in steps
        ]
        return JSONResponse({"task_id": str(task_id), "events": events})

    async def livez(self, request: Request) -> Response:
        """200 while the event loop turns; asks no other server."""
        return JSONResponse({"status": "alive"})

    async def readyz(self, request: Request) -> Response:
        """200 if tasks can be accepted and go on: Postgres, its tables and Redis answer; else 503 that says which."""
        checks = {"postgres": await self._check_postgres(), "redis": await self._check_redis()}
        # Tasks are accepted without Redis: they wait in the outbox.
        is_ready = checks["postgres"] == "ok"
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse({"status": "ready" if is_ready else "not ready", "checks": checks}, status)

    async def _accept(self, asked: Submission) -> Answer:
        attributes = {"messaging.destination.name": asked.pipeline, "messaging.message.id": str(asked.task_id)}
        try:
            with telemetry.span(telemetry.ACCEPT, SpanKind.SERVER, asked.traceparent, attributes) as traceparent:
                return await self._submitter.submit(asked.traced(traceparent))
        except Exception as error:
            raise _translated(error) from error

    async def _check_postgres(self) -> str:
        try:
            async with self._engine.connect() as connection:
                await connection.execute(text(f"select from {self._settings.schema}.task limit 0"))
        except Exception as error:
            return first_line(error)
        return "ok"

    async def _check_redis(self) -> str:
        client = broker.command_client(self._settings, connections=1)
        try:
            await client.ping()
        except (RedisError, OSError) as error:
            return first_line(error)
        finally:
            await client.aclose()
        return "ok"


def _accepted(answer: Accepted) -> dict[str, Any]:
    return {
        "task_id": str(answer.task_id),
        "pipeline": answer.pipeline,
        "status": "pending",
        "created_at": answer.created_at.isoformat(),
        "trace_id": telemetry.trace_id(answer.traceparent),
    }


def _refusal(answer: UnknownPipeline | KeyTaken | TaskTaken) -> Problem:
    match answer:
        case UnknownPipeline(pipeline):
            return invalid(Fault(f"there is no pipeline {pipeline[:63]!r}; postroad deploy makes one", "/pipeline"))
        case KeyTaken(key, task_id):
            return Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "key-reused",
                f"the idempotency key {key!r} stands for task {task_id}, which was submitted with other content",
                members={"task_id": str(task_id)},
            )
        case TaskTaken(task_id):
            return Problem(HTTPStatus.CONFLICT, "task-exists", f"there is another task {task_id}")


def _path_id(request: Request) -> UUID:
    given = request.path_params["task_id"]
    try:
        return UUID(given)
    except ValueError:
        raise Problem(HTTPStatus.NOT_FOUND, "not-found", "there is no such task: its id is no UUID") from None


def _no_task(task_id: UUID) -> Problem:
    return Problem(HTTPStatus.NOT_FOUND, "not-found", f"there is no task {task_id}")


def _translated(error: Exception) -> Exception:
    """``error`` as a problem if it says that Postgres is away."""
    if isinstance(error, Problem) or not is_transient(error):
        return error
    log.warning("Postgres is not available: %s", first_line(error))
    return unavailable("Postgres")


def _jsonable(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.isoformat() if hasattr(value, "isoformat") else str(value) if isinstance(value, UUID) else value
        for name, value in row.items()
    }


async def _answer_fault(request: Request, error: Exception) -> Response:
    return Problem(
        HTTPStatus.INTERNAL_SERVER_ERROR, "fault", "a fault of ours; the log of the intake says more"
    ).response()
