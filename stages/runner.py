"""Run one attempt of a handler and say what it came to. Nothing that a handler does gets past this file."""

import asyncio
import contextvars
import math
import threading
import traceback
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from ..core import logs, telemetry
from ..core.broker import group_name
from ..core.command_stage import CommandStage
from ..core.http_stage import HttpStage
from ..core.jsontext import encode, storable
from ..core.outcome import Completed, Outcome, Reject, Retry, Snooze
from ..core.pipeline import Handler, Stage
from ..core.task import Task

RESULT_LIMIT = 1024 * 1024
"""Bytes of JSON that a handler may return. Results are loaded by every later stage: large ones belong elsewhere."""

ERROR_LIMIT = 8_000
"""Characters of a traceback that are kept, from its end."""


@dataclass(frozen=True, slots=True)
class Trail:
    """What an attempt leaves behind: the last ``lines`` that it logged, and its span, if that is recorded."""

    lines: tuple[str, ...] = ()
    traceparent: str | None = None


NO_TRAIL = Trail()


@dataclass(frozen=True, slots=True)
class Run:
    """What an attempt came to, the traceback if it failed by an exception, and its trail."""

    outcome: Outcome
    error: str | None = None
    trail: Trail = NO_TRAIL


class HandlerThreads:
    """Runs plain functions, each in a daemon thread of its own.

    No pool: a function that never returns cannot be stopped, but its thread must neither block others from running
    nor keep the process from exiting, as those of ``concurrent.futures`` do. Only with the process they end: when there
    are ``limit`` of them, ``is_full`` is set.
    """

    def __init__(self, limit: int) -> None:
        self.abandoned = 0
        """Threads still running a function whose time was up."""
        self.is_full = asyncio.Event()
        self._limit = limit

    async def run(self, function: Callable[[], Any]) -> Any:
        """The value of ``function()``; a cancelled call abandons its thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def deliver(value: Any, error: BaseException | None) -> None:
            if future.cancelled():
                self.abandoned -= 1
            elif error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        def work() -> None:
            value: Any = None
            error: BaseException | None = None
            try:
                value = context.run(function)
            except (StopIteration, GeneratorExit) as stop:
                # A future would end whoever awaits it by these, not tell of them.
                error = RuntimeError(f"handler raised {type(stop).__name__}: {stop}")
                error.__cause__ = stop
            except BaseException as raised:
                error = raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(deliver, value, error)

        threading.Thread(target=work, name="handler", daemon=True).start()
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self.abandoned += 1
                if self.abandoned >= self._limit:
                    self.is_full.set()
            raise


async def run_handler(
    stage: Stage,
    task: Task,
    threads: HandlerThreads,
    connection: AsyncConnection | None = None,
    *,
    within: float = math.inf,
    is_anew: bool = False,
) -> Run:
    """Run ``stage``'s handler on ``task`` once, in a span, within its timeout, and within so many seconds.

    The span is part of the task's trace; ``is_anew``: it begins one of its own, with a link to that.

    ``connection`` is the transaction for a handler that asks for one. Whatever the handler raises becomes an outcome;
    only cancellation of the caller itself comes out as ``CancelledError``.
    """
    timeout = min(stage.timeout.total_seconds(), within)
    if _is_cancelled():
        # The cancellation was lost on the way here, as by asyncio.wait_for before Python 3.12, which redis-py uses.
        raise asyncio.CancelledError
    with _span(stage, task, is_anew=is_anew) as span, logs.lines_of(task) as attempted:
        try:
            run = await _run(stage, task, threads, connection, timeout)
        except asyncio.CancelledError:
            span.set_attribute("postroad.outcome", "cancelled")
            raise
        traceparent = None
        if span.is_recording():
            _tell(span, stage, task, run.outcome)
            traceparent = telemetry.traceparent_of(span)
    return replace(run, trail=Trail(attempted.lines, traceparent))


def _span(stage: Stage, task: Task, *, is_anew: bool) -> AbstractContextManager[Span]:
    if not telemetry.is_recorded(task.traceparent):
        return nullcontext(INVALID_SPAN)
    attributes: dict[str, str | int] = {
        "messaging.system": "redis",
        "messaging.operation.name": telemetry.PROCESS,
        "messaging.operation.type": "process",
        "messaging.destination.name": stage.full_name,
        "messaging.consumer.group.name": group_name(stage.pipeline, stage.name),
        "messaging.message.id": str(task.task_id),
        "postroad.pipeline": stage.pipeline,
        "postroad.stage": stage.name,
        "postroad.attempt": task.attempt,
    }
    return telemetry.span(
        f"{telemetry.PROCESS} {stage.full_name}", SpanKind.CONSUMER, None if is_anew else task.traceparent,
        attributes, links=[task.traceparent],
    )  # fmt: skip


def _tell(span: Span, stage: Stage, task: Task, outcome: Outcome) -> None:
    """Tell ``span`` what the attempt came to, in the words of the log and the metrics."""
    match outcome:
        case Completed():
            span.set_attribute("postroad.outcome", "waiting" if stage.hands_over else "done")
        case Snooze():
            span.set_attribute("postroad.outcome", "snoozed")
        case Retry() | Reject():
            is_dead = isinstance(outcome, Reject) or task.attempt > stage.retries
            span.set_attribute("postroad.outcome", "dead" if is_dead else "failed")
            cause = outcome.__cause__ or outcome
            telemetry.fail(span, type(cause).__qualname__, outcome.reason)


async def _run(
    stage: Stage, task: Task, threads: HandlerThreads, connection: AsyncConnection | None, timeout: float
) -> Run:
    try:
        value = await _call(stage, task, threads, connection, timeout)
    except Retry as retry:
        cause = retry.__cause__ or retry.__context__
        return Run(retry, _traceback(cause) if cause else None)
    except Snooze as snooze:
        return Run(snooze)
    except Reject as reject:
        return Run(reject, _traceback(reject.__cause__) if reject.__cause__ else None)
    except _OutOfTimeError as error:
        late = Retry(f"timed out after {round(timeout, 3):g} s")
        late.__cause__ = error.__cause__
        return Run(late)
    except BaseException as error:
        # SystemExit and its like too: a handler must not end the process that runs others' tasks.
        if _is_cancelled():
            # Whatever the handler made of it: that we stop is no failure of the attempt.
            raise asyncio.CancelledError from error
        if (rejected := _rejection_in(error)) is not None:
            return Run(rejected, _traceback(error))
        reason = f"{type(error).__name__}: {_text(error)}"
        if isinstance(error, asyncio.CancelledError):
            reason = "the handler raised CancelledError"
        failure = Retry(reason)
        failure.__cause__ = error
        return Run(failure, _traceback(error))
    return _completed(value)


def _rejection_in(error: BaseException) -> Reject | None:
    """The first ``Reject`` of a group of errors, as a ``TaskGroup`` raises one: to try again would be in vain."""
    while isinstance(error, BaseExceptionGroup):
        rejections = error.subgroup(Reject)
        if rejections is None:
            return None
        error = rejections.exceptions[0]
    return error if isinstance(error, Reject) else None


def _is_cancelled() -> bool:
    """True if somebody cancelled the caller, as opposed to a handler that raised ``CancelledError`` by itself."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


class _OutOfTimeError(Exception):
    """The stage's own timeout, as opposed to a TimeoutError that the handler met."""


async def _call(
    stage: Stage, task: Task, threads: HandlerThreads, connection: AsyncConnection | None, timeout: float
) -> Any:
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            if not stage.is_async:
                return await threads.run(lambda: _function(stage)(task))
            return await _alone(lambda: _handle(stage, task, connection))
    except TimeoutError as error:
        if limit.expired():
            raise _OutOfTimeError from error
        raise


def _function(stage: Stage) -> Handler:
    if isinstance(stage.handler, HttpStage | CommandStage):
        raise TypeError(f"{stage.full_name} is not bound: {stage.handler}")
    return stage.handler


async def _handle(stage: Stage, task: Task, connection: AsyncConnection | None) -> Any:
    if connection is None:
        return await _function(stage)(task)
    if stage.transaction is AsyncConnection:
        return await _function(stage)(task, connection)
    # In a savepoint of its own: whatever the session ends, by closing too, leaves our transaction open.
    async with AsyncSession(connection, expire_on_commit=False, join_transaction_mode="create_savepoint") as session:
        value = await _function(stage)(task, session)
        await session.commit()
        return value


async def _alone(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """The value of ``work()``, in a task of its own, which is cancelled with the caller.

    A ``TaskGroup`` that fails cancels the task that it is in, and before Python 3.13 may leave it marked as cancelled:
    that must not be taken for a cancellation of the attempt.
    """

    async def guarded() -> tuple[Any, BaseException | None]:
        try:
            return await work(), None
        except BaseException as error:  # a task that ends by SystemExit would end the loop with it
            return None, error

    value, error = await asyncio.create_task(guarded())
    try:
        if error is not None:
            raise error
    finally:
        del error  # it holds its traceback, which holds this frame
    return value


def _completed(value: Any) -> Run:
    try:
        result = encode(value)
    except Exception as error:
        # Any exception: what passes for a dictionary may be a class of the author's.
        return Run(Reject(f"the handler's result cannot be stored: {_text(error)}"))
    if len(result) > RESULT_LIMIT:
        return Run(
            Reject(
                f"the handler's result is too large: {len(result):,} bytes of JSON, {RESULT_LIMIT:,} at most;"
                " store it elsewhere and return where it is"
            )
        )
    return Run(Completed(result))


def _traceback(error: BaseException) -> str:
    return storable("".join(traceback.format_exception(error)))[-ERROR_LIMIT:]


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its message cannot be read)"
