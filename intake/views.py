"""The endpoints by which people, and their tools, look: tasks one by one and in lists, journeys, pipelines."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import asdict
from http import HTTPStatus
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from ..core.moment import parse_rfc3339
from ..core.task import Status
from ..outbox.audit import journey
from ..outbox.explain import explain
from ..outbox.whereabouts import Locator
from . import stream
from .answers import jsonable
from .auth import caller_of
from .cursor import cursor_of, place_of
from .endpoint import Endpoint, Reply, ref
from .keyring import Caller
from .listing import Filter, list_tasks
from .lookup import find_pipeline, find_task
from .members import LAST_EVENT, PREFER, TASKS, WAIT, is_text, unspaced
from .pipelines import list_pipelines
from .prefer import applied, preferred_wait
from .problems import Problem, malformed, no_task
from .requests import path_id, read_query
from .transaction import transaction
from .watch import STREAMS, Bookmark, Full, Watch, read_news

_WAIT = {"wait": WAIT}
_NOTHING: Mapping[str, Any] = {}


class Views:
    """The endpoints. They change nothing."""

    def __init__(self, schema: str, engine: AsyncEngine, watch: Watch, locator: Locator) -> None:
        self._schema = schema
        self._locator = locator
        self._engine = engine
        self._watch = watch

    def endpoints(self) -> list[Endpoint]:
        """All of them."""
        return [
            Endpoint(
                "GET", "/v1/tasks", self.list_tasks, "read",
                {200: Reply("A page.", ref("Tasks"), headers={"Link": "the next page"})},
                problems=(400, 503), query=TASKS,
            ),
            Endpoint(
                "GET", "/v1/tasks/{task_id}", self.show, "read",
                {200: Reply("The task.", ref("Task"), headers={"Preference-Applied": "wait=10: it was waited for"})},
                problems=(400, 404, 503), query=_WAIT, headers={"Prefer": PREFER},
            ),
            Endpoint(
                "GET", "/v1/tasks/{task_id}/events", self.events, "read",
                {
                    200: Reply(
                        "Its journey; to those who accept text/event-stream as it happens, until the task has ended.",
                        ref("Journey"), also={stream.MEDIA_TYPE: {"type": "string"}},
                    ),
                    204: Reply("To those who accept text/event-stream: it has ended, and they have heard all of it."),
                },
                problems=(400, 404, 503), headers={"Last-Event-ID": LAST_EVENT},
            ),
            Endpoint(
                "GET", "/v1/tasks/{task_id}/explain", self.explain, "read",
                {200: Reply("A sentence for each stage that is not done.", ref("Explanation"))},
                problems=(400, 404, 503),
            ),
            Endpoint(
                "GET", "/v1/pipelines", self.list_pipelines, "read",
                {200: Reply("The graphs in force, with what is at each stage.", ref("Pipelines"))},
                problems=(400, 503),
            ),
            Endpoint(
                "GET", "/v1/pipelines/{pipeline}", self.show_pipeline, "read",
                {200: Reply("The graph, with what is at each stage.", ref("Pipeline"))},
                problems=(400, 404, 503),
            ),
        ]  # fmt: skip

    async def list_tasks(self, request: Request) -> Response:
        """The tasks that a filter finds, the newest first, in pages; ``Link`` leads to the next."""
        asked = read_query(request, TASKS)
        limit, cursor = int(asked.pop("limit", "50")), asked.pop("cursor", None)
        wanted = filter_of(asked, caller_of(request).pipelines)
        try:
            after = None if cursor is None else place_of(cursor, asked)
        except ValueError as error:
            raise malformed(str(error)) from error
        async with transaction(self._engine) as connection:
            rows, following = await list_tasks(connection, wanted, after=after, limit=limit)
        next_cursor = following and cursor_of(following, asked)
        headers = {}
        if next_cursor:
            url = request.url.include_query_params(cursor=next_cursor)
            headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
        return JSONResponse(
            {"tasks": [jsonable(row) for row in rows], "next_cursor": next_cursor or None}, headers=headers
        )

    async def show(self, request: Request) -> Response:
        """One task with its stage runs; with ``wait``, once it has ended or the time is up."""
        task_id, asked = path_id(request), read_query(request, _WAIT)
        preferred = None if "wait" in asked else preferred_wait(request)
        seconds = int(asked.get("wait", preferred or 0))
        caller = caller_of(request)
        task = await self.find(task_id, caller)
        if seconds and not Status(task["status"]).is_terminal:
            try:
                await self.wait(request, task_id, seconds)
            except Full:
                raise _full("wait for tasks") from None
            task = await self.find(task_id, caller)
        return JSONResponse(jsonable(task), headers=applied(preferred))

    async def wait(self, request: Request, task_id: UUID, seconds: float) -> bool:
        """Return when the task has ended, true; or when the time is up, whoever asks is gone, or the server stops.

        Raises ``Full`` if as many wait as may.
        """
        ended = asyncio.create_task(self._watch.ended(task_id, within=seconds))
        gone = asyncio.create_task(_until_gone(request))
        try:
            await asyncio.wait((ended, gone), return_when=asyncio.FIRST_COMPLETED)
            return ended.done() and ended.result()
        finally:
            ended.cancel()
            gone.cancel()

    async def events(self, request: Request) -> Response:
        """The journey of one task, oldest first; to those who accept ``text/event-stream`` as it happens."""
        task_id = path_id(request)
        read_query(request, _NOTHING)
        if stream.wants_stream(request):
            return await self._follow(request, task_id)
        async with transaction(self._engine) as connection:
            steps = await journey(connection, task_id, self._schema)
            pipeline = await find_pipeline(connection, task_id)
        if pipeline is None or not caller_of(request).may_use(pipeline):
            raise no_task(task_id)
        return JSONResponse({"task_id": str(task_id), "events": [stream.event_body(step) for step in steps]})

    async def explain(self, request: Request) -> Response:
        """Why a task is where it is: what holds up each of its stages that is not done, in words too."""
        task_id = path_id(request)
        read_query(request, _NOTHING)
        async with transaction(self._engine) as connection:
            explanation = await explain(connection, task_id, self._schema, self._locator)
        if not caller_of(request).may_use(explanation.pipeline):
            raise no_task(task_id)
        reasons = [jsonable(asdict(reason)) for reason in explanation.reasons]
        return JSONResponse(jsonable(asdict(explanation)) | {"reasons": reasons})

    async def list_pipelines(self, request: Request) -> Response:
        """The pipelines in force: their graphs, and for each stage what is there, and for how long."""
        read_query(request, _NOTHING)
        return JSONResponse({"pipelines": await self._pipelines(caller_of(request).pipelines)})

    async def show_pipeline(self, request: Request) -> Response:
        """One pipeline: its graph, and for each stage what is there, and for how long."""
        read_query(request, _NOTHING)
        name = request.path_params["pipeline"]
        is_allowed = is_text(name) and caller_of(request).may_use(name)
        found = await self._pipelines([name]) if is_allowed else []
        if not found:
            raise Problem(HTTPStatus.NOT_FOUND, "not-found", "there is no such pipeline")
        return JSONResponse(found[0])

    async def find(self, task_id: UUID, caller: Caller) -> Mapping[str, Any]:
        """The task as the API shows it. Raises a ``Problem`` with 404, also if ``caller`` may not see it."""
        async with transaction(self._engine) as connection:
            task = await find_task(connection, task_id, self._schema)
        if task is None or not caller.may_use(task["pipeline"]):
            raise no_task(task_id)
        return task

    async def _pipelines(self, pipelines: Collection[str] | None = None) -> list[dict[str, Any]]:
        async with transaction(self._engine) as connection:
            return await list_pipelines(connection, self._schema, pipelines=pipelines)

    async def _follow(self, request: Request, task_id: UUID) -> Response:
        last = request.headers.get("last-event-id", "").strip()
        if last and not LAST_EVENT.is_valid(last):
            raise malformed(f"Last-Event-ID must be {LAST_EVENT.description}, as this stream gave it")
        if self._watch.streams >= STREAMS:
            raise _full("follow journeys")
        since = Bookmark.parse(last) if last else Bookmark()
        async with transaction(self._engine) as connection:
            (news,) = await read_news(connection, [(task_id, since)], self._schema)
            pipeline = await find_pipeline(connection, task_id)
        if news is None or pipeline is None or not caller_of(request).may_use(pipeline):
            raise no_task(task_id)
        if last and news.is_end and not news.events:
            # What tells a browser not to connect again.
            return Response(status_code=HTTPStatus.NO_CONTENT)
        if request.method == "HEAD":
            return Response(media_type=stream.MEDIA_TYPE, headers=stream.HEADERS)
        return StreamingResponse(
            stream.stream(self._watch, task_id, news), media_type=stream.MEDIA_TYPE, headers=stream.HEADERS
        )


async def _until_gone(request: Request) -> None:
    """Return when the client has closed the connection. Its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _full(what: str) -> Problem:
    detail = f"as many as may {what} at once already; try again, or ask without"
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "full", detail, headers={"Retry-After": "5"})


def filter_of(asked: Mapping[str, Any], pipelines: Collection[str] | None = None) -> Filter:
    """What the parameters of a query, which are valid, ask for, of the ``pipelines`` that the caller may see."""
    labels = [(name, value) for name, _, value in (label.partition(":") for label in asked.get("label", ()))]
    since, before = (
        parse_rfc3339(unspaced(asked[name])) if name in asked else None for name in ("created_after", "created_before")
    )
    return Filter(
        status=asked.get("status"),
        pipeline=asked.get("pipeline"),
        stage=asked.get("stage"),
        labels=labels,
        created_after=since,
        created_before=before,
        fingerprint=asked.get("fingerprint"),
        q=asked.get("q"),
        pipelines=pipelines,
    )
