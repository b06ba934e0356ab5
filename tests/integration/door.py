"""The intake as clients see it, with the database behind it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import httpx2
import uvicorn
from starlette.types import ASGIApp

from postroad import Settings
from postroad.intake.app import Beside, Foundation, create_app
from postroad.intake.connection import READ_SIZE
from postroad.intake.keys import create
from tests.integration.road import Road

NOTHING = {"task": 0, "outbox": 0, "intake_key": 0}
"""The rows of a database in which no submission has left anything."""


@dataclass(frozen=True, slots=True)
class Door:
    """A client of the intake, and the road behind it."""

    client: httpx2.AsyncClient
    road: Road

    async def post(self, body: bytes, **headers: str) -> httpx2.Response:
        """Submit one task by a body as it is; headers are spelt ``Idempotency_Key``."""
        return await self._post("/v1/tasks", "application/json", body, headers)

    async def submit(self, key: str | None = None, **members: Any) -> httpx2.Response:
        """Submit a task of these members, and of whatever else it needs."""
        body = raw(line(**members))
        return await (self.post(body) if key is None else self.post(body, Idempotency_Key=key))

    async def post_batch(self, body: bytes, **headers: str) -> httpx2.Response:
        """Submit a batch as it is."""
        return await self._post("/v1/tasks:batch", "application/x-ndjson", body, headers)

    async def batch(self, lines: Iterable[Any]) -> list[dict[str, Any]]:
        """Submit lines, JSON values or bytes as they are; the answer to each."""
        answer = await self.post_batch(b"\n".join(map(raw, lines)))
        assert answer.status_code == 200, answer.text[:300]
        assert answer.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in answer.text.splitlines()]

    async def key(self, *scopes: str, name: str = "shop", **options: Any) -> dict[str, str]:
        """A new key of these scopes; the header that brings it."""
        async with self.road.engine.begin() as connection:
            key, _ = await create(connection, name, scopes, by="test", **options)
        return {"Authorization": f"Bearer {key}"}

    async def _post(self, path: str, media_type: str, body: bytes, given: dict[str, str]) -> httpx2.Response:
        headers = {"Content-Type": media_type} | {name.replace("_", "-"): value for name, value in given.items()}
        return await self.client.post(path, content=body, headers=headers)


def line(**members: Any) -> dict[str, Any]:
    """A task that is accepted on a road with the pipeline ``travel``, unless ``members`` say otherwise."""
    return {"pipeline": "travel", "payload": {"to": "Rome"}} | members


def raw(value: Any) -> bytes:
    """A JSON value as text; bytes as they are."""
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def problem(answer: httpx2.Response, status: int, slug: str | None = None) -> dict[str, Any]:
    """The body of an answer that must be a problem with ``status``."""
    assert answer.status_code == status, f"{answer.status_code} {answer.text[:300]}"
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    if slug:
        assert body["type"] == f"/problems/{slug}"
    return body


def pointers(body: dict[str, Any]) -> list[str]:
    """Where the faults are that a problem names."""
    return sorted(fault["pointer"] for fault in body.get("errors", ()))


@asynccontextmanager
async def open_door(
    settings: Settings, *, beside: Callable[[Foundation], Beside] | None = None, base_url: str = "http://door"
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of an intake in this process, with no network between them; ``beside`` as for ``create_app``."""
    app = create_app(settings, beside=beside)
    client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=base_url, timeout=60)
    async with app.router.lifespan_context(app), client:
        yield client


@asynccontextmanager
async def open_port(
    app: ASGIApp, *, port: int = 0, parser: Literal["auto", "h11", "httptools"] | type[Any] = "auto"
) -> AsyncIterator[int]:
    """An app behind uvicorn, with one of its parsers of HTTP, or one of ours; yields the port on 127.0.0.1."""
    config = uvicorn.Config(app, port=port, http=parser, log_level="warning", h11_max_incomplete_event_size=READ_SIZE)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        assert not serving.done(), serving.result()
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving
