"""What the door says of itself is so: Schemathesis asks every operation, by the document, for what may go wrong."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from postroad import Settings
from postroad.intake.app import create_app
from tests.integration.door import Door, open_port
from tests.integration.road import TRAVEL, Road, die, open_road


@contextlib.contextmanager
def in_a_thread(settings: Settings) -> Iterator[str]:
    """The URL of a door that runs in a loop of its own: Schemathesis blocks while it asks."""
    url: list[str] = []
    is_up = threading.Event()
    loop = asyncio.new_event_loop()
    ending = asyncio.Event()

    async def serve() -> None:
        async with open_port(create_app(settings)) as port:
            url.append(f"http://127.0.0.1:{port}")
            is_up.set()
            await ending.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    try:
        assert is_up.wait(30)
        yield url[0]
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()
        loop.close()


@pytest.fixture
async def deployed(settings: Settings) -> AsyncIterator[Road]:
    """A road on which there is one of each: a task, a dead letter, a completed one."""
    async with open_road(settings, TRAVEL) as road:
        await road.accept()
        await die(road, "ride")
        await road.complete(await road.accept())
        yield road


EXAMPLES = 8
"""Cases of each operation that are right, and as many that are not."""


def ask(operation: Any, mode: GenerationMode) -> None:
    """Ask one operation for what is right, or for what is not, and hold the answers against the document."""

    @given(case=operation.as_strategy(generation_mode=mode))
    @hypothesis_settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    def call(case: Any) -> None:
        if operation.label == "POST /v1/tasks" and mode is GenerationMode.POSITIVE:
            # The document cannot know which pipelines there are, what day it is, and what was asked before.
            case.headers.pop("Idempotency-Key", None)
            case.body |= {"pipeline": "travel", "task_id": None, "not_before": None, "deadline": None, "priority": None}
        if operation.label == "GET /v1/tasks":
            case.query.pop("cursor", None)  # only the door itself makes any
        case.call_and_validate(timeout=20)

    with contextlib.suppress(Unsatisfiable):  # of some nothing can be wrong
        call()


def test_every_operation_does_what_the_document_says(
    settings: Settings, deployed: Road, subtests: pytest.Subtests
) -> None:
    with in_a_thread(settings) as url:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        for result in schema.get_all_operations():
            operation: Any = result.ok()  # type: ignore[union-attr]
            if operation.path == "/v1/tasks:batch":
                continue  # lines of JSON are no JSON; test_intake_batch asks it
            for mode in GenerationMode:
                with subtests.test(f"{operation.label}, {mode.value}"):
                    ask(operation, mode)


async def test_the_document_and_its_page_need_no_database_and_nothing_from_elsewhere(door: Door) -> None:
    answer = await door.client.get("/openapi.json")
    page = await door.client.get("/docs")

    assert (answer.status_code, answer.json()["openapi"]) == (200, "3.1.0")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not any(elsewhere in page.text for elsewhere in ("http://", "https://", "<script", "src="))
    for path, methods in answer.json()["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"]
            assert f"{method.upper()} {path}" in page.text


async def test_examples_of_the_document_are_accepted(door: Door) -> None:
    paths = (await door.client.get("/openapi.json")).json()["paths"]

    example = paths["/v1/tasks"]["post"]["requestBody"]["content"]["application/json"]["example"]
    answer: httpx2.Response = await door.client.post("/v1/tasks", json=example | {"pipeline": "travel"})

    assert answer.status_code == 202
