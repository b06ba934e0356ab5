"""The dashboard as the intake serves it: its addresses, who may open them, and what they say when it goes wrong."""

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..intake.app import Foundation
from ..intake.problems import Problem
from ..intake.transaction import as_problem
from .failures import Failures
from .house import House, Show, go_to
from .overview import Overview
from .pace import Pacer
from .reader import Reader
from .render import answer_asset, render
from .session import Sessions, Viewer, begin, end, read_form
from .sight import Sight
from .stages import Stages
from .task import TaskPage
from .tasks import Tasks
from .workers import Workers

log = logging.getLogger(__name__)

TITLES = {
    HTTPStatus.NOT_FOUND: "Not found",
    HTTPStatus.FORBIDDEN: "Not allowed",
    HTTPStatus.CONFLICT: "Not possible now",
    HTTPStatus.SERVICE_UNAVAILABLE: "Not available",
    HTTPStatus.INTERNAL_SERVER_ERROR: "A fault of ours",
}
"""Of the pages that say what is wrong."""


class Dashboard:
    """The pages under ``/ui``."""

    def __init__(self, foundation: Foundation) -> None:
        settings = foundation.settings
        reader = Reader(foundation.engine, settings.pool)
        self._house = House(foundation, reader, Sight(foundation, reader))
        self._sessions = Sessions(foundation.keyring, settings.auth)
        self._pacer = Pacer(foundation.engine, settings.schema)

    def routes(self) -> Sequence[Route]:
        """All of them."""
        overview, tasks, task = Overview(self._house), Tasks(self._house), TaskPage(self._house)
        failures, stages, workers = Failures(self._house, self._pacer), Stages(self._house), Workers(self._house)
        of_task, of_stage = "/ui/tasks/{task_id}", "/ui/stages/{pipeline}/{stage}"
        pages = [
            ("/ui/", overview.show),
            ("/ui/find", tasks.find),
            ("/ui/tasks", tasks.show),
            (of_task, task.show),
            ("/ui/failures", failures.show),
            ("/ui/failures/group", failures.show_group),
            ("/ui/stages", stages.show),
            (of_stage, stages.show_one),
            ("/ui/workers", workers.show),
        ]
        actions = [
            (f"{of_task}/{{action}}", ("cancel", "retry"), task.ask, task.act),
            ("/ui/failures/{action}", ("requeue", "discard"), failures.ask, failures.resolve),
        ]
        routes = [Route("/ui", _to_overview, methods=["GET"])]
        routes += [Route("/ui/static/{name}", _static, methods=["GET"])]
        routes += [Route(path, self._guarded("read", show), methods=["GET"]) for path, show in pages]
        routes.append(Route("/ui/failures/stop", self._guarded("operate", failures.stop), methods=["POST"]))
        for path, names, ask, act in actions:
            routes.append(Route(path, self._guarded("operate", _only(names, ask)), methods=["GET"]))
            routes.append(Route(path, self._guarded("operate", _only(names, act)), methods=["POST"]))
        routes += [
            Route(
                f"{of_stage}/{{action}}",
                self._guarded("operate", _only(("pause", "resume", "limits"), stages.change)),
                methods=["POST"],
            ),
            Route("/ui/login", self._login_page, methods=["GET"]),
            Route("/ui/login", self._log_in, methods=["POST"]),
            Route("/ui/logout", self._guarded("read", self._log_out), methods=["POST"]),
            Route("/ui/{path:path}", self._guarded("read", _nothing), methods=["GET", "POST"]),
        ]
        return routes

    async def close(self) -> None:
        """End what still runs."""
        await self._pacer.close()
        await self._house.sight.close()

    def _guarded(self, scope: str, show: Show) -> Callable[[Request], Awaitable[Response]]:
        return partial(self._answer, scope, show)

    async def _answer(self, scope: str, show: Show, request: Request) -> Response:
        viewer: Viewer | None = None
        try:
            viewer = await self._sessions.find(request)
            if viewer is None:
                return _to_login(request)
            if scope not in viewer.caller.scopes:
                raise Problem(
                    HTTPStatus.FORBIDDEN, "forbidden", f"the key {viewer.caller.name!r} lacks the scope {scope}"
                )
            response = await show(request, viewer)
            if request.method == "POST":
                self._house.sight.forget()
                log.info("%s by %s: %d", request.url.path, viewer.caller.actor or "somebody", response.status_code)
            return response
        except Exception as error:
            return self._wrong(request, viewer, error)

    def _wrong(self, request: Request, viewer: Viewer | None, error: Exception) -> Response:
        """The page that says what is wrong."""
        problem = as_problem(error)
        if not isinstance(problem, Problem):
            log.error("a page of the dashboard cannot be made", exc_info=error)
            detail = "this page cannot be made; the log of the intake says why"
            problem = Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "fault", detail)
        response = render(
            request, viewer or self._sessions.stranger(request), "problem.html",
            status=problem.status, problem=problem, title=TITLES.get(problem.status, problem.status.phrase),
            is_away=problem.slug == "unavailable",
        )  # fmt: skip
        response.headers.update(problem.headers)
        return response

    async def _login_page(self, request: Request) -> Response:
        return render(
            request, self._sessions.stranger(request), "login.html",
            is_wrong=False, following=_following(request.query_params.get("next")),
        )  # fmt: skip

    async def _log_in(self, request: Request) -> Response:
        """Begin a session with a key that is good."""
        stranger = self._sessions.stranger(request)
        try:
            form = await read_form(request, stranger)
            key, following = form.get("key", ""), _following(form.get("next"))
            caller = await self._sessions.log_in(key)
            if caller is None:
                return render(
                    request, stranger, "login.html",
                    status=HTTPStatus.FORBIDDEN, is_wrong=True, following=following,
                )  # fmt: skip
        except Exception as error:
            return self._wrong(request, stranger, error)
        log.info("%s has logged in to the dashboard", caller.actor)
        response = go_to(following)
        begin(request, response, key)
        return response

    async def _log_out(self, request: Request, viewer: Viewer) -> Response:
        await read_form(request, viewer)
        response = go_to("/ui/login")
        end(request, response)
        return response


def _only(names: Sequence[str], show: Show) -> Show:
    """``show`` for the actions of these names."""

    async def show_if_known(request: Request, viewer: Viewer) -> Response:
        if request.path_params["action"] not in names:
            return await _nothing(request, viewer)
        return await show(request, viewer)

    return show_if_known


async def _nothing(request: Request, viewer: Viewer) -> Response:
    raise Problem(HTTPStatus.NOT_FOUND, "not-found", f"there is no page {request.url.path[:200]}")


async def _to_overview(request: Request) -> Response:
    return go_to("/ui/")


async def _static(request: Request) -> Response:
    return answer_asset(request.path_params["name"]) or Response("there is no such file", HTTPStatus.NOT_FOUND)


def _to_login(request: Request) -> Response:
    if "hx-request" in request.headers:
        # A part of a page that is still open: the whole of it has to go there.
        return Response(status_code=HTTPStatus.NO_CONTENT, headers={"HX-Redirect": "/ui/login"})
    if request.method == "POST":
        return go_to("/ui/login")
    here = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
    return go_to("/ui/login" if here == "/ui/" else f"/ui/login?next={quote(here, safe='')}")


def _following(given: str | None) -> str:
    """Where to go after the login: a page of ours, whatever the address says."""
    if given and re.fullmatch(r"/ui/[^\\\s]*", given):
        return given
    return "/ui/"
