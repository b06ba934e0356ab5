"""The endpoints by which people, and their tools, step in: cancel, retry, pause, resume, and what is dead."""

from collections.abc import Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from . import dead_letters
from .answers import jsonable
from .cancel import cancel
from .dead_letters import LARGEST_ID, Selection
from .leases import extend, report
from .lookup import find_task
from .pause import set_paused
from .problems import Fault, Problem, invalid, no_task
from .requests import Member, path_id, read_members, read_query
from .retry import retry_dead, retry_from
from .transaction import transaction

ASKED_AT_ONCE = 10_000
"""Dead letters that one request may resolve, or name."""

MONTH = 30 * 24 * 3600
"""Seconds for which a service may have work, or ask to be left alone, at most."""

PAGE = 1000
"""Dead letters of one page at most."""

UNNAMED = "http"
"""Who has asked, if a request does not say."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 255 and "\x00" not in value


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST_ID


def _is_uuid(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(UUID(value))
    except ValueError:
        return False


def _is_number(value: str, most: int) -> bool:
    """True of digits that stand for 0 to ``most``."""
    return bool(
        isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20 and int(value) <= most
    )


TEXT = Member(_is_text, "a string of 1 to 255 characters")
FLAG = Member(lambda value: isinstance(value, bool), "true or false")
SECONDS = Member(
    lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MONTH,
    f"a number of seconds, more than 0 and at most {MONTH:,}",
)
WHO_AND_WHY = {"by": TEXT, "reason": TEXT}
FILTERS = {"pipeline": TEXT, "stage": TEXT, "fingerprint": TEXT}
SELECTION = FILTERS | {
    "ids": Member(
        lambda value: isinstance(value, list) and len(value) <= ASKED_AT_ONCE and all(map(_is_id, value)),
        f"a list of at most {ASKED_AT_ONCE:,} ids of dead letters",
    ),
    "task_ids": Member(
        lambda value: isinstance(value, list) and len(value) <= ASKED_AT_ONCE and all(map(_is_uuid, value)),
        f"a list of at most {ASKED_AT_ONCE:,} ids of tasks",
    ),
}
LIMIT = Member(lambda value: _is_id(value) and value <= ASKED_AT_ONCE, f"a number from 1 to {ASKED_AT_ONCE:,}")
LISTING = FILTERS | {
    "task_id": Member(_is_uuid, "the id of a task"),
    "limit": Member(lambda value: _is_number(value, PAGE) and int(value) > 0, f"a number from 1 to {PAGE:,}"),
    "cursor": Member(lambda value: _is_number(value, LARGEST_ID), "what the link to the next page has"),
}


class Operations:
    """The endpoints. What one changes, it changes in one transaction; ``by`` and ``reason`` stand in the journey."""

    def __init__(self, schema: str, engine: AsyncEngine) -> None:
        self._schema = schema
        self._engine = engine

    async def cancel(self, request: Request) -> Response:
        """Cancel a task. 200 also if it is cancelled already; 409 if it has completed."""
        task_id, asked = path_id(request), await read_members(request, WHO_AND_WHY)
        async with transaction(self._engine) as connection:
            changed = await cancel(connection, [task_id], self._schema, **_who_and_why(asked))
            task = await find_task(connection, task_id, self._schema)
        if task is None:
            raise no_task(task_id)
        if task["status"] != "cancelled":
            raise Problem(HTTPStatus.CONFLICT, "refused", f"task {task_id} is {task['status']}: nothing to cancel")
        return JSONResponse({"task_id": str(task_id), "status": "cancelled", "changed": bool(changed)})

    async def retry(self, request: Request) -> Response:
        """Run the dead stages of a task again; with ``from``, that stage and all after it."""
        task_id, asked = path_id(request), await read_members(request, WHO_AND_WHY | {"from": TEXT})
        stage, asked_by = asked.pop("from", None), _who_and_why(asked)
        async with transaction(self._engine) as connection:
            if stage is None:
                stages = await retry_dead(connection, task_id, self._schema, **asked_by)
            else:
                stages = await retry_from(connection, task_id, stage, self._schema, **asked_by)
        return JSONResponse({"task_id": str(task_id), "stages": stages})

    async def complete_lease(self, request: Request) -> Response:
        """Work that was handed to a service is done. The same again is answered alike."""
        asked = await read_members(request, {"result": Member(lambda _: True, "any JSON")})
        return await self._report(request, {"outcome": "completed", "result": asked.get("result")})

    async def fail_lease(self, request: Request) -> Response:
        """Work that was handed to a service has failed: to be tried again, unless ``retry`` is false."""
        asked = await read_members(request, {"reason": TEXT, "retry": FLAG, "after": SECONDS})
        if asked.get("retry", True):
            told = {"outcome": "failed", "after": asked.get("after")}
        else:
            told = {"outcome": "rejected"}
        return await self._report(request, told | {"reason": asked.get("reason")})

    async def extend_lease(self, request: Request) -> Response:
        """Work that was handed to a service takes longer: ``seconds`` from now, an hour unless said otherwise."""
        asked = await read_members(request, {"seconds": SECONDS})
        within = timedelta(seconds=asked.get("seconds", 3600))
        async with transaction(self._engine) as connection:
            name, until = await extend(connection, request.path_params["token"], within, self._schema)
        return JSONResponse({"stage_run": name, "until": until.isoformat()})

    async def _report(self, request: Request, told: dict[str, Any]) -> Response:
        told = {name: value for name, value in told.items() if value is not None}
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
        selection = Selection(**_filters(asked), tasks=None if task_id is None else [UUID(task_id)])
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
        asked = read_query(request, {"pipeline": TEXT, "stage": TEXT})
        async with transaction(self._engine) as connection:
            rows = await dead_letters.list_groups(
                connection, self._schema, pipeline=asked.get("pipeline"), stage=asked.get("stage")
            )
        return JSONResponse({"groups": [jsonable(row) for row in rows]})

    async def requeue(self, request: Request) -> Response:
        """Let the stages of dead letters begin anew."""
        return await self._resolve(request, dead_letters.requeue, "requeued")

    async def discard(self, request: Request) -> Response:
        """Resolve dead letters without another try."""
        return await self._resolve(request, dead_letters.discard, "discarded")

    async def _set_paused(self, request: Request, *, paused: bool) -> Response:
        await read_members(request, {})
        pipeline, stage = request.path_params["pipeline"], request.path_params["stage"]
        if not (_is_text(pipeline) and _is_text(stage)):
            raise Problem(HTTPStatus.NOT_FOUND, "not-found", "there is no such stage")
        async with transaction(self._engine) as connection:
            changed = await set_paused(connection, pipeline, stage, self._schema, paused=paused)
        return JSONResponse({"pipeline": pipeline, "stage": stage, "paused": paused, "changed": changed})

    async def _resolve(self, request: Request, resolve: dead_letters.Resolve, done: str) -> Response:
        known = WHO_AND_WHY | SELECTION | {"all": FLAG, "dry_run": FLAG, "limit": LIMIT}
        asked = await read_members(request, known)
        if not asked.get("all") and not SELECTION.keys() & asked.keys():
            raise invalid(Fault(f"say which: by {', '.join(SELECTION)}; or all: true"))
        limit = asked.get("limit", ASKED_AT_ONCE)
        selection = Selection(
            **_filters(asked),
            ids=asked.get("ids"),
            tasks=[UUID(one) for one in asked["task_ids"]] if "task_ids" in asked else None,
        )
        async with transaction(self._engine) as connection:
            matched = await dead_letters.find_dead_letters(connection, selection)
            resolved: list[tuple[UUID, str]] = []
            if not asked.get("dry_run"):
                wanted = [letter for letter, _ in matched[:limit]]
                resolved = await resolve(connection, wanted, self._schema, **_who_and_why(asked))
        return JSONResponse({"matched": len(matched), done: len(resolved)})


def _who_and_why(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {"by": asked.get("by", UNNAMED), "reason": asked.get("reason")}


def _filters(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {name: asked[name] for name in FILTERS if name in asked}
