"""One attempt of a handler: whatever the handler does, it comes out as an outcome."""

import asyncio
import contextlib
import contextvars
import json
import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from postroad import Pipeline, Reject, Retry, Snooze, Task
from postroad.core.outcome import Completed
from postroad.core.pipeline import Handler, Stage
from postroad.stages.runner import ERROR_LIMIT, RESULT_LIMIT, HandlerThreads, Run, run_handler

TASK = Task(
    task_id=UUID("01990000-0000-7000-8000-000000000001"),
    pipeline="road",
    stage="ride",
    payload={"to": "York"},
    results={},
    attempt=1,
    labels={},
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)

spoken: contextvars.ContextVar[str] = contextvars.ContextVar("spoken", default="nothing")


def stage_for(handler: Handler, *, timeout: float = 30) -> Stage:
    road = Pipeline("road")
    road.stage("ride", timeout=timeout)(handler)
    return road.graph()["ride"]


async def run(handler: Handler, *, timeout: float = 30, threads: HandlerThreads | None = None) -> Run:
    return await run_handler(stage_for(handler, timeout=timeout), TASK, threads or HandlerThreads(100))


def raising(error: BaseException, *, is_async: bool) -> Handler:
    async def ride(task: Task) -> None:
        raise error

    def walk(task: Task) -> None:
        raise error

    return ride if is_async else walk


def returning(value: Any) -> Handler:
    async def ride(task: Task) -> Any:
        return value

    return ride


def retry_of(came_to: Run) -> Retry:
    assert isinstance(came_to.outcome, Retry)
    return came_to.outcome


def reason_of(came_to: Run) -> str:
    assert isinstance(came_to.outcome, Retry | Reject)
    return came_to.outcome.reason


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - a count in a thread, which tells nobody
            await asyncio.sleep(0.005)


# What a handler returns


@pytest.mark.parametrize(
    "value", [None, True, 7, -1.5, "Ærø 🐎", [1, [2, {}]], {"host": "n17", "cores": [1, 2]}, 2**1000]
)
async def test_a_returned_value_is_kept_as_json(value: Any) -> None:
    came_to = await run(returning(value))

    assert isinstance(came_to.outcome, Completed)
    assert json.loads(came_to.outcome.result) == value
    assert came_to.error is None


async def test_a_handler_is_given_the_task() -> None:
    async def ride(task: Task) -> Any:
        return [str(task.task_id), task.payload, task.idempotency_key]

    came_to = await run(ride)

    assert isinstance(came_to.outcome, Completed)
    assert json.loads(came_to.outcome.result) == [str(TASK.task_id), {"to": "York"}, f"{TASK.task_id}/ride"]


class Treacherous(dict[str, int]):
    """Claims to be a dictionary."""

    def items(self) -> Any:
        raise RuntimeError("look elsewhere")


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, r"a datetime is no JSON value \(at /at\)"),
        ([object()], r"a object is no JSON value \(at /0\)"),
        ({1: "one"}, "the name of a member is int, not a string"),
        ({"a": ["x\x00y"]}, r"cannot keep the character \\u0000 \(at /a/0\)"),
        ({"a\x00": 1}, r"cannot keep the character \\u0000"),
        ("\ud800", "one half of a surrogate pair"),
        ({"share": math.nan}, r"a number is not finite.*\(at /share\)"),
        (-math.inf, "a number is not finite"),
        (2**2000, "a number is larger than"),
        (b"bytes", "a bytes is no JSON value"),
        ({1, 2}, "a set is no JSON value"),
        (Treacherous(a=1), "look elsewhere"),
    ],
)
async def test_a_result_that_cannot_be_stored_is_rejected_with_the_member_at_fault(value: Any, complaint: str) -> None:
    came_to = await run(returning(value))

    assert isinstance(came_to.outcome, Reject)
    with pytest.raises(AssertionError, match=complaint):
        raise AssertionError(came_to.outcome.reason)
    assert came_to.outcome.reason.startswith("the handler's result cannot be stored: ")


async def test_a_result_within_itself_is_rejected() -> None:
    circle: list[Any] = []
    circle.append(circle)

    came_to = await run(returning(circle))

    assert isinstance(came_to.outcome, Reject)
    assert "nested deeper than" in came_to.outcome.reason


async def test_a_result_that_is_too_large_is_rejected_with_both_sizes() -> None:
    fits = await run(returning("x" * (RESULT_LIMIT - 2)))
    too_large = await run(returning("x" * (RESULT_LIMIT - 1)))

    assert isinstance(fits.outcome, Completed)
    assert isinstance(too_large.outcome, Reject)
    assert "1,048,577 bytes of JSON, 1,048,576 at most" in too_large.outcome.reason


async def test_the_size_of_a_result_is_that_of_its_bytes() -> None:
    came_to = await run(returning("🐎" * (RESULT_LIMIT // 4)))

    assert isinstance(came_to.outcome, Reject)


# What a handler raises


@pytest.mark.parametrize("is_async", [True, False])
async def test_outcomes_that_are_raised_come_out_as_they_are(is_async: bool) -> None:
    for outcome in (Retry("later", after=3), Snooze(timedelta(minutes=5), "closed"), Reject("never")):
        came_to = await run(raising(outcome, is_async=is_async))

        assert came_to.outcome is outcome
        assert came_to.error is None


async def test_a_task_group_that_fails_is_a_failed_attempt_and_no_cancellation() -> None:
    async def ride(task: Task) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fall())
            await asyncio.sleep(0)

    async def fall() -> None:
        raise OSError("fell")

    for _ in range(3):
        assert "fell" in str((await run(ride)).error)


async def test_a_rejection_within_a_group_rejects() -> None:
    async def ride(task: Task) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fall())
            group.create_task(refuse())

    async def fall() -> None:
        raise ExceptionGroup("a pile", [OSError("fell")])

    async def refuse() -> None:
        raise ExceptionGroup("a queue", [Reject("no such town")])

    came_to = await run(ride)
    assert isinstance(came_to.outcome, Reject)
    assert came_to.outcome.reason == "no such town"
    assert "fell" in str(came_to.error)

    async def only_fall(task: Task) -> None:
        await fall()

    assert isinstance((await run(only_fall)).outcome, Retry)


async def test_a_retry_keeps_the_traceback_of_its_cause() -> None:
    async def ride(task: Task) -> None:
        try:
            raise ConnectionResetError("the bridge is out")
        except OSError as error:
            raise Retry("no way through", after=3) from error

    came_to = await run(ride)

    assert retry_of(came_to).after == timedelta(seconds=3)
    assert came_to.error is not None
    assert "ConnectionResetError: the bridge is out" in came_to.error


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_exception_becomes_a_retry_with_its_traceback(is_async: bool) -> None:
    came_to = await run(raising(ValueError("no such inn"), is_async=is_async))

    assert retry_of(came_to).reason == "ValueError: no such inn"
    assert retry_of(came_to).after is None
    assert came_to.error is not None
    assert came_to.error.startswith("Traceback (most recent call last)")
    assert came_to.error.endswith("ValueError: no such inn\n")
    assert "raise error" in came_to.error


async def test_of_a_long_traceback_the_end_is_kept() -> None:
    came_to = await run(raising(ValueError("x" * 50_000 + " the end"), is_async=True))

    assert came_to.error is not None
    assert len(came_to.error) == ERROR_LIMIT
    assert came_to.error.endswith(" the end\n")


async def test_a_traceback_holds_nothing_that_postgres_refuses() -> None:
    came_to = await run(raising(ValueError("nul \x00 half \ud83d end"), is_async=True))

    assert came_to.error is not None
    assert "\x00" not in came_to.error
    assert came_to.error.encode("utf-8").endswith("nul \N{REPLACEMENT CHARACTER} half ? end\n".encode())


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("I say nothing")


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_exception_that_cannot_be_printed_is_named(is_async: bool) -> None:
    came_to = await run(raising(MuteError(), is_async=is_async))

    assert retry_of(came_to).reason == "MuteError: (its message cannot be read)"
    assert came_to.error is not None
    assert "MuteError" in came_to.error


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    "kind", [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration]
)
async def test_what_would_end_more_than_the_attempt_ends_the_attempt(kind: type[BaseException], is_async: bool) -> None:
    came_to = await run(raising(kind("over"), is_async=is_async))

    assert kind.__name__ in retry_of(came_to).reason
    assert came_to.error is not None
    assert f"{kind.__name__}: over" in came_to.error


# Time


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_timeout_that_the_handler_met_is_told_from_that_of_the_stage(is_async: bool) -> None:
    came_to = await run(raising(TimeoutError("the ferry did not come"), is_async=is_async))

    assert retry_of(came_to).reason == "TimeoutError: the ferry did not come"
    assert came_to.error is not None


async def test_a_timeout_within_the_handler_is_told_from_that_of_the_stage() -> None:
    async def ride(task: Task) -> None:
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()

    came_to = await run(ride)

    assert retry_of(came_to).reason == "TimeoutError: "


async def test_an_attempt_ends_when_the_stages_time_is_up() -> None:
    cleaned_up = asyncio.Event()

    async def ride(task: Task) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()

    came_to = await run(ride, timeout=0.05)

    assert retry_of(came_to).reason == "timed out after 0.05 s"
    assert cleaned_up.is_set()


async def test_a_handler_that_answers_its_timeout_with_another_error_has_timed_out_with_that_error() -> None:
    async def ride(task: Task) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("the horse shied") from None

    came_to = await run(ride, timeout=0.05)

    assert retry_of(came_to).reason == "ValueError: the horse shied"


# Cancellation from outside


async def cancelled_while_running(handler: Handler, started: asyncio.Event) -> "asyncio.Task[Run]":
    running = asyncio.create_task(run(handler))
    await started.wait()
    running.cancel()
    await asyncio.wait([running])
    return running


async def test_cancellation_of_the_caller_comes_out() -> None:
    started = asyncio.Event()

    async def ride(task: Task) -> None:
        started.set()
        await asyncio.Event().wait()

    assert (await cancelled_while_running(ride, started)).cancelled()


async def test_cancellation_of_the_caller_comes_out_of_a_handler_that_dresses_it_up() -> None:
    started = asyncio.Event()

    async def ride(task: Task) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise RuntimeError("the ride was interrupted") from error

    assert (await cancelled_while_running(ride, started)).cancelled()


async def test_a_caller_whose_cancellation_was_swallowed_on_the_way_begins_nothing() -> None:
    started = asyncio.Event()
    ran = asyncio.Event()

    async def ride(task: Task) -> None:
        ran.set()

    async def swallow_and_run() -> Run:
        with contextlib.suppress(asyncio.CancelledError):
            started.set()
            await asyncio.Event().wait()
        return await run(ride)

    running = asyncio.create_task(swallow_and_run())
    await started.wait()
    running.cancel()
    await asyncio.wait([running])

    assert running.cancelled()
    assert not ran.is_set()


async def test_a_handler_that_is_done_in_spite_of_cancellation_is_done() -> None:
    started = asyncio.Event()

    async def ride(task: Task) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "almost there anyway"
        raise AssertionError

    running = await cancelled_while_running(ride, started)

    assert running.result().outcome == Completed('"almost there anyway"')


# Threads


async def test_a_plain_function_runs_in_a_thread_and_sees_the_context() -> None:
    def walk(task: Task) -> list[Any]:
        return [threading.current_thread() is threading.main_thread(), spoken.get()]

    spoken.set("a word")
    came_to = await run(walk)

    assert came_to.outcome == Completed('[false,"a word"]')


async def test_what_a_plain_function_sets_in_its_context_stays_there() -> None:
    def walk(task: Task) -> None:
        spoken.set("another word")

    spoken.set("a word")
    await run(walk)

    assert spoken.get() == "a word"


async def test_a_plain_function_that_never_returns_is_left_behind_and_holds_nobody_up() -> None:
    threads = HandlerThreads(100)
    gate = threading.Event()

    def walk(task: Task) -> None:
        gate.wait()

    hung = await asyncio.gather(*(run(walk, timeout=0.05, threads=threads) for _ in range(40)))

    assert {retry_of(came_to).reason for came_to in hung} == {"timed out after 0.05 s"}
    assert threads.abandoned == 40
    others = await run(lambda task: "through", threads=threads)
    assert others.outcome == Completed('"through"')
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "handler")

    gate.set()
    await until(lambda: threads.abandoned == 0)


async def test_when_too_many_functions_hang_it_is_told() -> None:
    threads = HandlerThreads(3)
    gate = threading.Event()

    def walk(task: Task) -> None:
        gate.wait()

    await asyncio.gather(*(run(walk, timeout=0.05, threads=threads) for _ in range(2)))
    assert not threads.is_full.is_set()
    await run(walk, timeout=0.05, threads=threads)
    assert threads.is_full.is_set()

    gate.set()
    await until(lambda: threads.abandoned == 0)


async def test_a_cancelled_call_leaves_its_thread_behind() -> None:
    threads = HandlerThreads(100)
    gate = threading.Event()
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def walk(task: Task) -> None:
        loop.call_soon_threadsafe(started.set)
        gate.wait()

    running = asyncio.create_task(run(walk, threads=threads))
    await started.wait()
    running.cancel()
    await asyncio.wait([running])

    assert running.cancelled()
    assert threads.abandoned == 1
    gate.set()
    await until(lambda: threads.abandoned == 0)


async def test_many_plain_functions_run_side_by_side() -> None:
    together = threading.Barrier(30)

    def walk(task: Task) -> int:
        together.wait(timeout=10)
        return 1

    came_to = await asyncio.gather(*(run(walk) for _ in range(30)))

    assert {one.outcome for one in came_to} == {Completed("1")}
