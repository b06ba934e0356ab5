"""The endpoints by which people, and their tools, step in: cancel, retry, pause, resume, and what is dead."""

from collections.abc import Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from . import dead_letters
from .answers import jsonable
from .auth import caller_of
from .cancel import cancel
from .dead_letters import Selection
from .endpoint import Body, Endpoint, Reply, ref
from .keyring import Caller
from .leases import extend, report
from .lookup import find_pipeline, find_task
from .members import (
    ANY,
    ASKED_AT_ONCE,
    FILTERS,
    FLAG,
    LIMIT,
    LISTING,
    SECONDS,
    SELECTION,
    TEXT,
    WHO_AND_WHY,
    Member,
    is_text,
)
from .pause import set_paused
from .problems import Fault, Problem, invalid, no_task
from .requests import path_id, read_members, read_query
from .retry import retry_dead, retry_from
from .transaction import transaction

UNNAMED = "http"
"""Who has asked, if a request does not say."""

RETRY = WHO_AND_WHY | {"from": TEXT}
RESOLVE = WHO_AND_WHY | SELECTION | {"all": FLAG, "dry_run": FLAG, "limit": LIMIT}
WHICH = [
    {"required": [name], "properties": {name: member.schema}}
    for name, member in (SELECTION | {"all": Member(bool, "true", {"const": True})}).items()
]
"""What of ``RESOLVE`` says which dead letters: one at least."""

GROUPS = {"pipeline": TEXT, "stage": TEXT}
COMPLETED = {"result": ANY}
FAILED = {"reason": TEXT, "retry": FLAG, "after": SECONDS}
EXTENDED = {"seconds": SECONDS}


async def read_completion(request: Request) -> dict[str, Any]:
    """A report that work is done, as it is kept. Raises a ``Problem``."""
    asked = await read_members(request, COMPLETED)
    return {"outcome": "completed"} | asked


async def read_failure(request: Request) -> dict[str, Any]:
    """A report that work has failed, to be tried again or, by ``retry``, never; as it is kept. Raises a ``Problem``."""
    asked = await read_members(request, FAILED)
    if asked.pop("retry", True):
        return {"outcome": "failed"} | asked
    asked.pop("after", None)
    return {"outcome": "rejected"} | asked


async def read_extension(request: Request) -> timedelta:
    """For how much longer a service wants to have its work, from now. Raises a ``Problem``."""
    asked = await read_members(request, EXTENDED)
    return timedelta(seconds=asked.get("seconds", 3600))


class Operations:
    """The endpoints. What one changes, it changes in one transaction; ``by`` and ``reason`` stand in the journey."""

    def __init__(self, schema: str, engine: AsyncEngine) -> None:
        self._schema = schema
        self._engine = engine

    def endpoints(self) -> list[Endpoint]:
        """All of them."""
        of_task, of_stage = "/v1/tasks/{task_id}", "/v1/pipelines/{pipeline}/stages/{stage}"
        state = {200: Reply("How the stage is now, and whether that changed anything.", ref("StageState"))}
        reported = {
            200: Reply("Heard.", ref("Reported"), headers={"Idempotent-Replayed": "true: the same was reported before"})
        }
        return [
            Endpoint(
                "POST", f"{of_task}/cancel", self.cancel, "operate",
                {200: Reply("It is cancelled.", ref("Cancelled"))},
                problems=(404, 409, 422, 503), body=Body.of(WHO_AND_WHY),
            ),
            Endpoint(
                "POST", f"{of_task}/retry", self.retry, "operate",
                {200: Reply("The stages that run again.", ref("Retried"))},
                problems=(404, 409, 422, 503), body=Body.of(RETRY, example={"from": "allocate", "by": "ada"}),
            ),
            Endpoint(
                "POST", f"{of_stage}/pause", self.pause, "operate", state,
                problems=(404, 422, 503), body=Body.of(WHO_AND_WHY),
            ),
            Endpoint(
                "POST", f"{of_stage}/resume", self.resume, "operate", state,
                problems=(404, 422, 503), body=Body.of(WHO_AND_WHY),
            ),
            Endpoint(
                "POST", "/v1/leases/{token}:complete", self.complete_lease, None, reported,
                problems=(404, 409, 422, 503), body=Body.of(COMPLETED, example={"result": {"host": "n17"}}),
            ),
            Endpoint(
                "POST", "/v1/leases/{token}:fail", self.fail_lease, None, reported,
                problems=(404, 409, 422, 503), body=Body.of(FAILED, example={"reason": "no host is free", "after": 60}),
            ),
            Endpoint(
                "POST", "/v1/leases/{token}:extend", self.extend_lease, None,
                {200: Reply("Until when the report is due now.", ref("Extended"))},
                problems=(404, 409, 422, 503), body=Body.of(EXTENDED, example={"seconds": 3600}),
            ),
            Endpoint(
                "GET", "/v1/dead-letters", self.list_dead_letters, "read",
                {200: Reply("A page.", ref("DeadLetters"), headers={"Link": "the next page"})},
                problems=(400, 503), query=LISTING,
            ),
            Endpoint(
                "GET", "/v1/dead-letters:groups", self.list_groups, "read",
                {200: Reply("The groups.", ref("DeadLetterGroups"))}, problems=(400, 503), query=GROUPS,
            ),
            Endpoint(
                "POST", "/v1/dead-letters:requeue", self.requeue, "operate",
                {200: Reply("How many matched, and how many were requeued.", ref("Requeued"))},
                problems=(422, 503),
                body=Body.of(RESOLVE, example={"fingerprint": "9f2c1e0ab4d7", "by": "ada"}, anyOf=WHICH),
            ),
            Endpoint(
                "POST", "/v1/dead-letters:discard", self.discard, "operate",
                {200: Reply("How many matched, and how many were discarded.", ref("Discarded"))},
                problems=(422, 503),
                body=Body.of(RESOLVE, example={"ids": [17], "reason": "the order was cancelled"}, anyOf=WHICH),
            ),
        ]  # fmt: skip

    async def cancel(self, request: Request) -> Response:
        """Cancel a task. 200 also if it is cancelled already; 409 if it has completed."""
        task_id, asked = path_id(request), await read_members(request, WHO_AND_WHY)
        caller = caller_of(request)
        async with transaction(self._engine) as connection:
            await check_task(connection, caller, task_id)
            changed = await cancel(connection, [task_id], self._schema, **who_and_why(caller, asked))
            task = await find_task(connection, task_id, self._schema)
        if task is None:
            raise no_task(task_id)
        if task["status"] != "cancelled":
            raise Problem(HTTPStatus.CONFLICT, "refused", f"task {task_id} is {task['status']}: nothing to cancel")
        return JSONResponse({"task_id": str(task_id), "status": "cancelled", "changed": bool(changed)})

    async def retry(self, request: Request) -> Response:
        """Run the dead stages of a task again; with ``from``, that stage and all after it."""
        task_id, asked = path_id(request), await read_members(request, RETRY)
        caller = caller_of(request)
        stage, asked_by = asked.pop("from", None), who_and_why(caller, asked)
        async with transaction(self._engine) as connection:
            await check_task(connection, caller, task_id)
            if stage is None:
                stages = await retry_dead(connection, task_id, self._schema, **asked_by)
            else:
                stages = await retry_from(connection, task_id, stage, self._schema, **asked_by)
        return JSONResponse({"task_id": str(task_id), "stages": stages})

    async def complete_lease(self, request: Request) -> Response:
        """Work that was handed to a service is done. The same again is answered alike."""
        return await self._report(request, await read_completion(request))

    async def fail_lease(self, request: Request) -> Response:
        """Work that was handed to a service has failed: to be tried again, unless ``retry`` is false."""
        return await self._report(request, await read_failure(request))

    async def extend_lease(self, request: Request) -> Response:
        """Work that was handed to a service takes longer: ``seconds`` from now, an hour unless said otherwise."""
        within = await read_extension(request)
        async with transaction(self._engine) as connection:
            name, until = await extend(connection, request.path_params["token"], within, self._schema)
        return JSONResponse({"stage_run": name, "until": until.isoformat()})

    async def _report(self, request: Request, told: dict[str, Any]) -> Response:
        async with transaction(self._engine) as connection:
            name, is_repeat = await report(connection, request.path_params["token"], told, self._schema)
        headers = {"Idempotent-Replayed": "true"} if is_repeat else {}
        return JSONResponse({"stage_run": name, "outcome": told["outcome"]}, headers=headers)

    async def pause(self, request: Request) -> Response:
        """Let a stage's workers read nothing more."""
        return await self._set_paused(request, paused=True)

    async def resume(self, request: Request) -> Response:
        """Let a stage's workers read again."""
        return await self._set_paused(request, paused=False)

    async def list_dead_letters(self, request: Request) -> Response:
        """The unresolved dead letters, a page of them, the oldest first; ``Link`` leads to the next."""
        asked = read_query(request, LISTING)
        limit, after = int(asked.pop("limit", "100")), int(asked.pop("cursor", "0"))
        task_id = asked.pop("task_id", None)
        tasks = None if task_id is None else [UUID(task_id)]
        selection = Selection(**_filters(asked), tasks=tasks, pipelines=caller_of(request).pipelines)
        async with transaction(self._engine) as connection:
            rows = await dead_letters.list_dead_letters(connection, selection, after=after, limit=limit + 1)
        shown = rows[:limit]
        headers = {}
        if len(rows) > limit:
            following = request.url.include_query_params(cursor=shown[-1]["dead_letter_id"])
            headers["Link"] = f'<{following.path}?{following.query}>; rel="next"'
        return JSONResponse({"dead_letters": [jsonable(row) for row in shown]}, headers=headers)

    async def list_groups(self, request: Request) -> Response:
        """What they failed of: those that failed alike are one group, the largest first."""
        asked = read_query(request, GROUPS)
        async with transaction(self._engine) as connection:
            rows = await dead_letters.list_groups(
                connection, self._schema, **_filters(asked), pipelines=caller_of(request).pipelines
            )
        return JSONResponse({"groups": [jsonable(row) for row in rows]})

    async def requeue(self, request: Request) -> Response:
        """Let the stages of dead letters begin anew."""
        return await self._resolve(request, dead_letters.requeue, "requeued")

    async def discard(self, request: Request) -> Response:
        """Resolve dead letters without another try."""
        return await self._resolve(request, dead_letters.discard, "discarded")

    async def _set_paused(self, request: Request, *, paused: bool) -> Response:
        asked, caller = await read_members(request, WHO_AND_WHY), caller_of(request)
        pipeline, stage = request.path_params["pipeline"], request.path_params["stage"]
        if not (is_text(pipeline) and is_text(stage)):
            raise Problem(HTTPStatus.NOT_FOUND, "not-found", "there is no such stage")
        if not caller.may_use(pipeline):
            raise Problem(HTTPStatus.NOT_FOUND, "not-found", f"there is no stage {pipeline}.{stage}")
        who = who_and_why(caller, asked)
        async with transaction(self._engine) as connection:
            changed = await set_paused(connection, pipeline, stage, self._schema, paused=paused, **who)
        return JSONResponse({"pipeline": pipeline, "stage": stage, "paused": paused, "changed": changed})

    async def _resolve(self, request: Request, resolve: dead_letters.Resolve, done: str) -> Response:
        caller = caller_of(request)
        asked = await read_members(request, RESOLVE)
        if not asked.get("all") and not SELECTION.keys() & asked.keys():
            raise invalid(Fault(f"say which: by {', '.join(SELECTION)}; or all: true"))
        limit = int(asked.get("limit", ASKED_AT_ONCE))
        selection = Selection(
            **_filters(asked),
            ids=[int(one) for one in asked["ids"]] if "ids" in asked else None,
            tasks=[UUID(one) for one in asked["task_ids"]] if "task_ids" in asked else None,
            pipelines=caller.pipelines,
        )
        async with transaction(self._engine) as connection:
            matched = await dead_letters.find_dead_letters(connection, selection)
            resolved: list[tuple[UUID, str]] = []
            if not asked.get("dry_run"):
                wanted = [letter for letter, _ in matched[:limit]]
                resolved = await resolve(connection, wanted, self._schema, **who_and_why(caller, asked))
        return JSONResponse({"matched": len(matched), done: len(resolved)})


async def check_task(connection: AsyncConnection, caller: Caller, task_id: UUID) -> None:
    """Raise the problem that there is no such task, if it is of a pipeline that the caller's key is not good for."""
    if caller.pipelines is not None and await find_pipeline(connection, task_id) not in caller.pipelines:
        raise no_task(task_id)


def who_and_why(caller: Caller, asked: Mapping[str, Any], *, unnamed: str = UNNAMED) -> dict[str, Any]:
    """Who asks is known by the key; who they say they are, or ask for, stands beside it. Without either ``unnamed``."""
    said, reason = asked.get("by"), asked.get("reason")
    if caller.actor is None:
        return {"by": said or unnamed, "on_behalf_of": None, "reason": reason}
    return {"by": caller.actor, "on_behalf_of": said, "reason": reason}


def _filters(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {name: asked[name] for name in FILTERS if name in asked}
