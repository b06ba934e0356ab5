"""The lines of the log, and those that are kept with an attempt."""

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from postroad import Pipeline, Retry, Task
from postroad.core import logs
from postroad.core.logs import KEPT_CHARACTERS, KEPT_LINES, ConsoleLines, JSONLines, configure_logging
from postroad.stages.runner import HandlerThreads, Run, run_handler

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TASK = Task(
    task_id=UUID("01990000-0000-7000-8000-000000000001"),
    pipeline="road",
    stage="ride",
    payload={"secret": "s3cret"},
    results={},
    attempt=2,
    labels={},
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    traceparent=f"00-{TRACE}-00f067aa0ba902b7-01",
)
FIELDS = {"pipeline": "road", "stage": "ride", "task_id": str(TASK.task_id), "attempt": 2, "trace_id": TRACE}

authors = logging.getLogger("authors.code")


def record(message: str, *arguments: Any, error: bool = False, **fields: Any) -> logging.LogRecord:
    exc_info = sys.exc_info() if error else None
    made = logging.LogRecord("postroad.relay", logging.WARNING, "relay.py", 1, message, arguments, exc_info)
    made.__dict__.update(fields)
    return made


def test_a_line_is_one_json_object_with_the_fields_that_it_has() -> None:
    line = JSONLines().format(record("ran %s\nin two lines", "allocate", stage="allocate", attempt=2, payload="secret"))

    assert "\n" not in line
    document = json.loads(line)
    assert document.pop("timestamp").endswith("+00:00")
    assert document == {
        "level": "warning",
        "logger": "postroad.relay",
        "message": "ran allocate\nin two lines",
        "stage": "allocate",
        "attempt": 2,
    }


def test_a_line_of_an_exception_holds_its_traceback() -> None:
    try:
        raise KeyError("quota")
    except KeyError:
        failed = record("failed", error=True)

    assert "KeyError: 'quota'" in json.loads(JSONLines().format(failed))["exception"]
    assert ConsoleLines().format(failed).endswith("KeyError: 'quota'")


def test_a_field_that_is_no_json_is_written_as_text() -> None:
    assert json.loads(JSONLines().format(record("ran", task_id=TRACE, outcome=ValueError("x"))))["outcome"] == "x"


def test_a_line_for_a_person_ends_with_the_fields() -> None:
    line = ConsoleLines().format(record("ran %s", "it", stage="allocate", payload="secret"))

    assert line.endswith(" warning ran it stage=allocate")
    assert ConsoleLines().format(record("ran it")).endswith("ran it")


@pytest.fixture
def logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    noisy = {name: logging.getLogger(name).level for name in ("alembic", "sqlalchemy", "asyncio")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, was in noisy.items():
        logging.getLogger(name).setLevel(was)


@pytest.mark.usefixtures("logging_restored")
def test_the_log_goes_to_stderr_as_json_lines_if_that_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info")
    logging.getLogger("postroad.relay").info("relaying", extra={"shard": 3})
    logging.getLogger("sqlalchemy.engine").info("select 1")
    logging.getLogger("postroad.relay").debug("silent")

    written = capsys.readouterr()

    assert written.out == ""
    (line,) = written.err.splitlines()
    assert json.loads(line)["message"] == "relaying"
    assert json.loads(line)["shard"] == 3


@pytest.mark.usefixtures("logging_restored")
def test_the_log_can_be_written_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("warning", console=True)
    logging.getLogger("postroad.relay").warning("relaying", extra={"shard": 3})

    assert capsys.readouterr().err.rstrip().endswith("warning relaying shard=3")


async def attempt(handler: Any) -> Run:
    """What an attempt of ``handler`` on ``TASK`` comes to."""
    road = Pipeline("road")
    road.stage("ride")(handler)
    return await run_handler(road.graph()["ride"], TASK, HandlerThreads(1))


def said(run: Run) -> list[str]:
    """What is kept with the attempt, without the time."""
    return [line.partition(" ")[2] for line in run.trail.lines]


@pytest.mark.usefixtures("logging_restored")
async def test_what_a_handler_logs_is_a_line_of_its_attempt_and_kept_with_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("debug")

    async def beside() -> None:
        authors.warning("beside")

    async def ride(task: Task) -> None:
        authors.info("riding to %s", "York")
        authors.debug("for the log alone")
        await asyncio.create_task(beside())
        await asyncio.to_thread(authors.error, "in a thread", extra={"task_id": "my own"})

    run = await attempt(ride)
    authors.info("between attempts")

    written = [json.loads(line) for line in capsys.readouterr().err.splitlines() if "authors.code" in line]
    assert {name: written[0][name] for name in FIELDS} == FIELDS
    assert [(line["message"], line.get("task_id")) for line in written] == [
        ("riding to York", str(TASK.task_id)),
        ("for the log alone", str(TASK.task_id)),
        ("beside", str(TASK.task_id)),
        ("in a thread", "my own"),
        ("between attempts", None),
    ]
    assert said(run) == ["INFO riding to York", "WARNING beside", "ERROR in a thread"]
    assert "s3cret" not in str(written)


@pytest.mark.usefixtures("logging_restored")
async def test_the_lines_of_a_plain_function_are_kept_too_and_those_of_a_failure() -> None:
    configure_logging("info")

    def ride(task: Task) -> None:
        authors.info("from %s", threading.current_thread().name)
        try:
            raise KeyError("quota")
        except KeyError:
            authors.exception("no quota")
        raise Retry("later")

    run = await attempt(ride)

    first, second = said(run)
    assert first == "INFO from handler"
    assert second.startswith("ERROR no quota\nTraceback")
    assert second.endswith("KeyError: 'quota'")


@pytest.mark.usefixtures("logging_restored")
async def test_attempts_side_by_side_keep_their_own_lines() -> None:
    configure_logging("info")
    both = asyncio.Barrier(2)

    def handler(name: str) -> Any:
        async def ride(task: Task) -> None:
            await both.wait()
            authors.info(name)
            await both.wait()

        return ride

    left, right = await asyncio.gather(attempt(handler("left")), attempt(handler("right")))

    assert (said(left), said(right)) == (["INFO left"], ["INFO right"])


def test_the_last_lines_are_kept_and_no_more_text_than_has_its_place() -> None:
    with logs.lines_of(TASK) as attempted:
        for number in range(KEPT_LINES + 5):
            logs.keep(str(number))
    assert attempted.lines == tuple(str(number) for number in range(5, KEPT_LINES + 5))

    with logs.lines_of(TASK) as attempted:
        logs.keep("first")
        logs.keep("x" * (KEPT_CHARACTERS - 3))
        logs.keep("end")
    assert [len(line) for line in attempted.lines] == [KEPT_CHARACTERS - 3, 3]

    with logs.lines_of(TASK) as attempted:
        logs.keep("y" * KEPT_CHARACTERS + "the end")
    (line,) = attempted.lines
    assert len(line) == KEPT_CHARACTERS
    assert line.endswith("the end")


def test_a_kept_line_is_text_that_postgres_takes() -> None:
    with logs.lines_of(TASK) as attempted:
        logs.keep("a\x00b\ud800")

    assert attempted.lines == ("a\N{REPLACEMENT CHARACTER}b?",)


def test_outside_of_an_attempt_nothing_is_kept() -> None:
    logs.keep("lost")

    with logs.lines_of(TASK) as attempted:
        pass
    assert attempted.lines == ()


@pytest.mark.usefixtures("logging_restored")
async def test_lines_are_kept_though_the_author_configured_logging_anew() -> None:
    configure_logging("info")
    logging.basicConfig(level="INFO", force=True)
    logs.keep_lines()
    logs.keep_lines()

    async def ride(task: Task) -> None:
        authors.info("once")

    assert said(await attempt(ride)) == ["INFO once"]
