"""Accept tasks: from anybody, in whose transaction they like, by the one function in SQL that does it for everybody.

An HTTP request, a call from Python and one in SQL mean the same: the same rules, and under the same idempotency key the
same task. The function decides and says what it decided; here nothing is looked at twice.
"""

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NoReturn, overload
from uuid import UUID

from ..core.database import SCHEMA, Statements
from ..core.errors import NotFoundError, RefusedError, UnstorableError
from ..core.jsontext import encode
from ..core.moment import in_utc
from ..core.priority import WORDS, Priority
from ..core.task import new_task_id
from ..core.telemetry import continued, current_traceparent, sent
from .connections import AnyAsyncConnection, Rows, SyncConnection, execute


@dataclass(slots=True)  # frozen would take twice as long to make, and there are thousands in a second
class Submission:
    """One task to be accepted. ``payload`` and ``labels`` are JSON text, checked; ``traceparent`` is a valid one.

    Without ``key`` every submission is a new task. ``has_own_id``: the client chose ``task_id``, which then stands for
    the key if there is none. ``not_before`` and ``deadline`` have a time zone.
    """

    task_id: UUID
    pipeline: str
    payload: str
    labels: str
    traceparent: str
    key: str | None = None
    has_own_id: bool = False
    not_before: datetime | None = None
    deadline: datetime | None = None
    priority: Priority = Priority.NORMAL
    submitted_by: str | None = None
    """Who submits, as ``key:<name>``."""

    def traced(self, traceparent: str) -> "Submission":
        """The same submission, under another span of its trace."""
        return replace(self, traceparent=traceparent) if traceparent != self.traceparent else self


@dataclass(frozen=True, slots=True)
class Accepted:
    """The task is in the transaction. ``is_replay``: it is there already, accepted under the same key."""

    task_id: UUID
    pipeline: str
    created_at: datetime
    traceparent: str
    is_replay: bool = False


@dataclass(frozen=True, slots=True)
class UnknownPipeline:
    """No such pipeline was deployed; nothing was written."""

    pipeline: str


@dataclass(frozen=True, slots=True)
class KeyTaken:
    """The key stands for a task with other content; nothing was written."""

    key: str
    task_id: UUID


@dataclass(frozen=True, slots=True)
class TaskTaken:
    """The client's own task id stands for another task; nothing was written."""

    task_id: UUID


@dataclass(frozen=True, slots=True)
class Invalid:
    """The value of ``member`` is against the rules; nothing was written."""

    member: str
    detail: str


Refusal = UnknownPipeline | KeyTaken | TaskTaken | Invalid
Answer = Accepted | Refusal


@overload
def accept(
    connection: SyncConnection, group: Sequence[Submission], schema: str, *, patience: str | None = ...
) -> list[Answer]: ...


@overload
def accept(
    connection: AnyAsyncConnection, group: Sequence[Submission], schema: str, *, patience: str | None = ...
) -> Awaitable[list[Answer]]: ...


def accept(
    connection: SyncConnection | AnyAsyncConnection,
    group: Sequence[Submission],
    schema: str,
    *,
    patience: str | None = None,
) -> list[Answer] | Awaitable[list[Answer]]:
    """Accept what can be accepted of ``group`` in the transaction of ``connection``; the answers are in its order.

    A key that another transaction is about to commit is waited for, at most for ``patience`` (as ``1s``): then Postgres
    says that it could not obtain the lock.
    """
    statement = Statements(__package__ or "", schema)["accept"]
    parameters = _columns(group) | {"patience": patience}
    return execute(connection, statement, parameters, lambda rows: _answers(group, rows))


@overload
def submit(
    connection: SyncConnection,
    pipeline: str,
    payload: Any,
    *,
    key: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    task_id: UUID | None = ...,
    not_before: datetime | None = ...,
    deadline: datetime | None = ...,
    priority: str | None = ...,
    traceparent: str | None = ...,
    schema: str = ...,
) -> Accepted: ...


@overload
def submit(
    connection: AnyAsyncConnection,
    pipeline: str,
    payload: Any,
    *,
    key: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    task_id: UUID | None = ...,
    not_before: datetime | None = ...,
    deadline: datetime | None = ...,
    priority: str | None = ...,
    traceparent: str | None = ...,
    schema: str = ...,
) -> Awaitable[Accepted]: ...


def submit(
    connection: SyncConnection | AnyAsyncConnection,
    pipeline: str,
    payload: Any,
    *,
    key: str | None = None,
    labels: Mapping[str, str] | None = None,
    task_id: UUID | None = None,
    not_before: datetime | None = None,
    deadline: datetime | None = None,
    priority: str | None = None,
    traceparent: str | None = None,
    schema: str = SCHEMA,
) -> Accepted | Awaitable[Accepted]:
    """Submit a task in the transaction of ``connection``: it is in its pipeline if that commits, and nowhere if not.

    ``connection`` is a connection or session of SQLAlchemy over psycopg, or a connection of psycopg; on an asynchronous
    one the call is awaited. The same ``key`` with the same content again, from wherever it comes, is the same task
    (``is_replay``). ``not_before`` and ``deadline`` need a time zone. ``priority`` is ``high``, ``normal`` or ``low``
    if the pipeline has priorities. The task goes on with the trace of ``traceparent``, by default that of the current
    OpenTelemetry span. ``schema`` is that of ``postroad migrate``.

    What is refused writes nothing and leaves the transaction usable: ``NotFoundError`` for an unknown pipeline,
    ``UnstorableError`` for a value against the rules (``pointer`` names it), ``RefusedError`` for a key or task id that
    stands for something else and for a date that will not do. Waits while another transaction submits the same key.

    >>> accepted = submit(connection, "orders", {"sku": "n17"}, key="order-1")
    """
    asked = _asked(
        pipeline, payload, key=key, labels=labels, task_id=task_id, not_before=not_before, deadline=deadline,
        priority=priority, traceparent=traceparent,
    )  # fmt: skip
    statement = Statements(__package__ or "", schema)["accept"]
    parameters = _columns([asked]) | {"patience": None}
    return execute(connection, statement, parameters, lambda rows: _all_accepted([asked], rows)[0])


@overload
def submit_many(
    connection: SyncConnection,
    pipeline: str,
    payloads: Iterable[Any],
    *,
    keys: Iterable[str | None] | None = ...,
    labels: Mapping[str, str] | None = ...,
    not_before: datetime | None = ...,
    deadline: datetime | None = ...,
    priority: str | None = ...,
    traceparent: str | None = ...,
    schema: str = ...,
) -> list[Accepted]: ...


@overload
def submit_many(
    connection: AnyAsyncConnection,
    pipeline: str,
    payloads: Iterable[Any],
    *,
    keys: Iterable[str | None] | None = ...,
    labels: Mapping[str, str] | None = ...,
    not_before: datetime | None = ...,
    deadline: datetime | None = ...,
    priority: str | None = ...,
    traceparent: str | None = ...,
    schema: str = ...,
) -> Awaitable[list[Accepted]]: ...


def submit_many(
    connection: SyncConnection | AnyAsyncConnection,
    pipeline: str,
    payloads: Iterable[Any],
    *,
    keys: Iterable[str | None] | None = None,
    labels: Mapping[str, str] | None = None,
    not_before: datetime | None = None,
    deadline: datetime | None = None,
    priority: str | None = None,
    traceparent: str | None = None,
    schema: str = SCHEMA,
) -> list[Accepted] | Awaitable[list[Accepted]]:
    """Submit a task for each of ``payloads``, all of them or none, in one statement; the answers are in their order.

    ``keys``, if given, has one for each payload (``None``: none). Everything else is as in ``submit``, and the same for
    all. If one is refused none was submitted.
    """
    payloads = list(payloads)
    their_keys = [None] * len(payloads) if keys is None else list(keys)
    if len(their_keys) != len(payloads):
        raise UnstorableError(f"one key for each payload: {len(their_keys)} for {len(payloads)}", "/keys")
    # One trace for all: they are submitted together.
    trace = continued(traceparent or current_traceparent())
    asked = [
        _asked(
            pipeline, payload, key=key, labels=labels, not_before=not_before, deadline=deadline, priority=priority,
            traceparent=trace,
        )
        for payload, key in zip(payloads, their_keys, strict=True)
    ]  # fmt: skip
    statement = Statements(__package__ or "", schema)["accept_all"]
    return execute(connection, statement, _columns(asked), lambda rows: _all_accepted(asked, rows))


def refuse(refusal: Refusal) -> NoReturn:
    """Raise the error of ours that says ``refusal``."""
    match refusal:
        case UnknownPipeline(pipeline):
            raise NotFoundError(f"there is no pipeline {pipeline!r}; postroad deploy makes one")
        case KeyTaken(key, task_id):
            raise RefusedError(f"the key {key!r} stands for task {task_id}, which was submitted with other content")
        case TaskTaken(task_id):
            raise RefusedError(f"there is another task {task_id}")
        case Invalid("not_before" | "deadline" as member, detail):
            raise RefusedError(f"{member}: {detail}")
        case Invalid(member, detail):
            raise UnstorableError(detail, f"/{member}")


def _asked(
    pipeline: str,
    payload: Any,
    *,
    key: str | None,
    labels: Mapping[str, str] | None,
    task_id: UUID | None = None,
    not_before: datetime | None,
    deadline: datetime | None,
    priority: str | None,
    traceparent: str | None,
) -> Submission:
    if priority is not None and priority not in WORDS:
        raise UnstorableError(f"{priority!r} is none of {', '.join(WORDS)}", "/priority")
    moments = {"not_before": not_before, "deadline": deadline}
    for member, moment in moments.items():
        if moment is None:
            continue
        if moment.utcoffset() is None:
            raise UnstorableError(f"{moment} has no time zone", f"/{member}")
        try:
            moments[member] = in_utc(moment)
        except ValueError as error:
            raise UnstorableError(str(error), f"/{member}") from None
    for member, text in (("pipeline", pipeline), ("key", key)):
        if text is not None:
            encode({member: text})
    chosen = task_id or new_task_id()
    return Submission(
        task_id=chosen,
        has_own_id=task_id is not None,
        pipeline=pipeline,
        payload=encode(payload),
        labels=encode(dict(labels or {})),
        traceparent=sent(pipeline, chosen, traceparent or current_traceparent()),
        key=key,
        not_before=moments["not_before"],
        deadline=moments["deadline"],
        priority=Priority.NORMAL if priority is None else WORDS[priority],
    )


def _all_accepted(group: Sequence[Submission], rows: Rows) -> list[Accepted]:
    accepted = []
    for answer in _answers(group, rows):
        if not isinstance(answer, Accepted):
            refuse(answer)
        accepted.append(answer)
    return accepted


def _answers(group: Sequence[Submission], rows: Rows) -> list[Answer]:
    return [
        _answer(group[place - 1], outcome, task_id, created_at, traceparent, fault)
        for place, outcome, task_id, created_at, traceparent, fault in rows
    ]


def _answer(
    asked: Submission, outcome: str, task_id: UUID, created_at: datetime, traceparent: str, fault: str | None
) -> Answer:
    match outcome:
        case "accepted" | "replayed":
            return Accepted(task_id, asked.pipeline, created_at, traceparent, is_replay=outcome == "replayed")
        case "unknown_pipeline":
            return UnknownPipeline(asked.pipeline)
        case "key_taken":
            return KeyTaken(asked.key or str(asked.task_id), task_id)
        case "task_taken":
            return TaskTaken(task_id)
        case _:
            member, _, detail = (fault or "").partition(": ")
            return Invalid(member, detail)


def _array(words: Iterable[str]) -> str:
    """An array in Postgres' own text, of words that need no quotes: psycopg takes three times as long to write it."""
    return f"{{{','.join(words)}}}"


def _columns(group: Sequence[Submission]) -> dict[str, Any]:
    return {
        "task_id": _array([str(submission.task_id) for submission in group]),
        "is_own": _array(["t" if submission.has_own_id else "f" for submission in group]),
        "pipeline": [submission.pipeline for submission in group],
        "payload": [submission.payload for submission in group],
        "labels": [submission.labels for submission in group],
        "key": [submission.key for submission in group],
        "traceparent": [submission.traceparent for submission in group],
        "not_before": [submission.not_before for submission in group],
        "deadline": [submission.deadline for submission in group],
        "priority": _array([str(int(submission.priority)) for submission in group]),
        "submitted_by": [submission.submitted_by for submission in group],
    }
