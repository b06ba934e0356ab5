"""A task's journey as Server-Sent Events: what has happened, and then what happens, until the task has ended."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import UUID

from starlette.requests import Request

from ..core.errors import NotFoundError
from .watch import Happening, News, Watch

MEDIA_TYPE = "text/event-stream"

PING = 15.0
"""Seconds after which a stream without news shows that it lives: proxies close what is silent."""

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def wants_stream(request: Request) -> bool:
    """True if the request asks for a stream by ``Accept``."""
    accepted = ",".join(request.headers.getlist("accept")).split(",")
    return any(one.partition(";")[0].strip().lower() == MEDIA_TYPE for one in accepted)


def event_body(event: Any) -> Mapping[str, Any]:
    """An event of a journey as JSON has it."""
    return {
        "position": event.position,
        "type": f"{event.type}:{event.stage}" if event.stage else event.type,
        "stage": event.stage,
        "data": event.data,
        "occurred_at": event.occurred_at.isoformat(),
    }


async def stream(watch: Watch, task_id: UUID, news: News) -> AsyncIterator[str]:
    """``news``, what comes after it, and ``event: end`` after the last event; it breaks off when the server stops."""
    watch.streams += 1
    try:
        yield "retry: 3000\n\n"
        while True:
            for event in news.events:
                yield _event(event)
            if news.is_end:
                yield _message("end", {"task_id": str(task_id), "status": str(news.status)})
                return
            bookmark = news.bookmark
            while True:
                try:
                    more = await watch.news(task_id, bookmark, within=PING)
                    break
                except TimeoutError:
                    yield ": still here\n\n"
            if more is None:
                return
            news = more
    except NotFoundError:  # it was dropped, as being past its retention
        return
    finally:
        watch.streams -= 1


def _event(event: Happening) -> str:
    written = _message(event.type, event_body(event))
    return written if event.bookmark is None else f"id: {event.bookmark}\n{written}"


def _message(kind: str, data: Mapping[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"
