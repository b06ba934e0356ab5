"""Failures: dead letters that failed alike are one group, which can be requeued or discarded as a whole."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.requests import Request
from starlette.responses import Response

from ..core.database import dead_letter_table
from ..intake.dead_letters import Selection, list_dead_letters
from ..intake.keyring import Caller
from ..intake.members import FILTERS, LETTER_CURSOR
from ..intake.operations import who_and_why
from ..intake.problems import Fault, invalid
from ..intake.requests import read_query
from .house import House, go_to
from .pace import FASTEST, Pacer
from .reader import Part
from .render import address, render
from .session import Viewer, read_form
from .sight import MOST

GROUPS = 100
"""Groups on a page; who has more failures of different kinds filters them."""

PAGE = 50
"""Letters on a page."""


class Failures:
    """The pages below ``/ui/failures``."""

    def __init__(self, house: House, pacer: Pacer) -> None:
        self._house = house
        self._pacer = pacer

    async def show(self, request: Request, viewer: Viewer) -> Response:
        """All groups, or those of a pipeline or a stage."""
        asked = read_query(request, {name: FILTERS[name] for name in ("pipeline", "stage")})
        groups, names = await asyncio.gather(
            self._house.reader.part(
                lambda connection: read_groups(connection, self._house, viewer.caller, limit=GROUPS, **asked)
            ),
            self._house.sight.names(viewer.caller),
        )
        return render(
            request, viewer, "failures.html",
            asked=asked, groups=groups, names=names, most=GROUPS, working=self._pacer.of(viewer.caller),
        )  # fmt: skip

    async def show_group(self, request: Request, viewer: Viewer) -> Response:
        """The letters of a group, page by page."""
        asked = read_query(request, FILTERS | {"cursor": LETTER_CURSOR})
        after = int(asked.pop("cursor", "0"))
        selection = Selection(**asked, pipelines=viewer.caller.pipelines)
        groups, letters = await asyncio.gather(
            self._house.reader.part(
                lambda connection: read_groups(connection, self._house, viewer.caller, limit=GROUPS, **asked)
            ),
            self._house.reader.part(
                lambda connection: list_dead_letters(connection, selection, after=after, limit=PAGE + 1)
            ),
        )
        rows = letters.value or []
        following = (
            address("/ui/failures/group", **asked, cursor=rows[PAGE - 1]["dead_letter_id"]) if rows[PAGE:] else None
        )
        return render(
            request, viewer, "group.html",
            asked=asked, groups=groups, letters=Part(rows[:PAGE], letters.note), following=following,
            working=self._pacer.of(viewer.caller),
        )  # fmt: skip

    async def ask(self, request: Request, viewer: Viewer) -> Response:
        """How many would be requeued or discarded; the page that has it confirmed."""
        action = request.path_params["action"]
        asked = read_query(request, FILTERS)
        groups = await self._house.reader.part(
            lambda connection: read_groups(connection, self._house, viewer.caller, limit=GROUPS, **asked)
        )
        matched = await self._house.reader.part(lambda connection: _count(connection, viewer.caller, asked))
        return render(
            request, viewer, "resolve.html",
            action=action, asked=asked, groups=groups, matched=matched, query=urlencode(asked), fastest=FASTEST,
        )  # fmt: skip

    async def resolve(self, request: Request, viewer: Viewer) -> Response:
        """Requeue or discard all that match, at a rate if one is given."""
        action = request.path_params["action"]
        asked = read_query(request, FILTERS)
        form = await read_form(request, viewer)
        rate = _rate(form.get("rate"))
        selection = Selection(**asked, pipelines=viewer.caller.pipelines)
        who = who_and_why(viewer.caller, form, unnamed="dashboard")
        await self._pacer.begin(action, selection, rate, who)
        return go_to("/ui/failures")

    async def stop(self, request: Request, viewer: Viewer) -> Response:
        """End a requeueing that goes on; what is done is done."""
        form = await read_form(request, viewer)
        self._pacer.stop(form.get("number", ""), viewer.caller)
        return go_to("/ui/failures")


async def read_groups(
    connection: AsyncConnection, house: House, caller: Caller, *, limit: int, **filters: str
) -> list[dict[str, Any]]:
    """The groups that ``caller`` may see, at most ``limit``, those with the newest letters first."""
    parameters: dict[str, Any] = {name: filters.get(name) for name in FILTERS}
    parameters |= {"pipelines": None if caller.pipelines is None else list(caller.pipelines)}
    rows = await connection.exec_driver_sql(house.sql["failure_groups"], parameters | {"groups": GROUPS, "most": MOST})
    return [_group(dict(row._mapping)) for row in rows][:limit]


def _group(row: Mapping[str, Any]) -> dict[str, Any]:
    letters = {"count": min(row["letters"], MOST), "capped": row["letters"] > MOST}
    names = {name: row[name] for name in FILTERS}
    return dict(row) | {"letters": letters, "href": address("/ui/failures/group", **names), "names": names}


async def _count(connection: AsyncConnection, caller: Caller, asked: Mapping[str, Any]) -> dict[str, Any]:
    condition = Selection(**asked, pipelines=caller.pipelines).condition()
    some = select(dead_letter_table.c.dead_letter_id).where(condition).limit(MOST + 1).subquery()
    counted = await connection.scalar(select(func.count()).select_from(some)) or 0
    return {"count": min(counted, MOST), "capped": counted > MOST}


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        rate = float(text.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0.1 <= rate <= FASTEST:
        raise invalid(Fault(f"{text!r:.40} is no rate: a number from 0.1 to {FASTEST:,} letters a second", "/rate"))
    return rate
