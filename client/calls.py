"""The calls about one task, as conversations."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import UUID, uuid4

from ..core.errors import IntakeError, UnstorableError
from ..core.jsontext import encode
from .exchange import Answer, Conversation, Request, pause
from .new_task import NewTask
from .patience import Patience
from .views import Submitted, TaskView, submitted, task_view

T = TypeVar("T")

HOLD = 30
"""Seconds for which the intake is asked to hold its answer until the task has ended."""

FIRST, LONGEST = 0.1, 2.0
"""Seconds between two looks at a task, at first and at last, where the intake does not hold its answers."""


def submit(pipeline: str, task: NewTask, patience: Patience, traceparent: str | None = None) -> Conversation[Submitted]:
    """Submit one task. It is given a key if it has neither key nor id, so that it may be sent twice."""
    key = f"client-{uuid4().hex}" if task.key is None and task.task_id is None else task.key
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Idempotency-Key"] = _quoted(key)
    if traceparent is not None:
        headers["traceparent"] = traceparent
    body = encode({"pipeline": pipeline} | task.members()).encode()
    answer = yield from patience.ask(Request("POST", "/v1/tasks", body, headers), key=key)
    is_replay = answer.headers.get("idempotent-replayed") == "true"
    return _read(patience, answer, lambda told: submitted(told, key=key, is_replay=is_replay))


def task(task_id: UUID | str, patience: Patience) -> Conversation[TaskView]:
    """The task as it stands."""
    answer = yield from patience.ask(Request("GET", path(task_id)))
    return _read(patience, answer, task_view)


def wait(task_id: UUID | str, timeout: float | None, patience: Patience) -> Conversation[TaskView]:
    """The task once it goes no further by itself. Raises ``TimeoutError`` after ``timeout`` seconds.

    Asks the intake to hold its answer, and looks again and again where it does not, or just now holds too many.
    """
    clock = patience.clock
    end = float("inf") if timeout is None else clock() + timeout
    is_held, is_full, delay = True, False, FIRST
    while True:
        asked_at = clock()
        left = end - asked_at
        hold = int(max(min(HOLD, left), 0)) if is_held and not is_full else 0
        request = Request("GET", f"{path(task_id)}?wait={hold}" if hold else path(task_id), silence=HOLD * 2)
        answer = yield from patience.within(left).ask(request, also=frozenset({400, 503} if hold else ()))
        is_full = answer.status == 503
        if answer.status == 400:  # it knows no such parameter
            is_held = False
            continue
        if is_full:
            yield from pause(max(min(max(answer.retry_after, FIRST), end - clock()), 0.0))
            continue
        view = _read(patience, answer, task_view)
        if view.is_terminal:
            return view
        left = end - clock()
        if left <= 0:
            raise TimeoutError(f"task {view.task_id} is {view.status} ({view.stage_status}) after {timeout:g} s")
        if hold and clock() - asked_at < hold / 2:
            is_held = False
        if not (hold and is_held):
            yield from pause(min(delay, left))
            delay = min(delay * 1.5, LONGEST)


def cancel(task_id: UUID | str, by: str | None, reason: str | None, patience: Patience) -> Conversation[bool]:
    """End a task that has not completed; false if it was cancelled already."""
    answer = yield from patience.ask(_post(f"{path(task_id)}/cancel", {"by": by, "reason": reason}))
    return _read(patience, answer, lambda told: bool(told["changed"]))


def retry(
    task_id: UUID | str, stage: str | None, by: str | None, reason: str | None, patience: Patience
) -> Conversation[list[str]]:
    """Run the dead stages of a task again, or ``stage`` and all after it; the names of those that will run.

    Twice would be twice, so this is not sent again once it may have arrived.
    """
    members = {"from": stage, "by": by, "reason": reason}
    answer = yield from patience.ask(_post(f"{path(task_id)}/retry", members, is_repeatable=False))
    return _read(patience, answer, lambda told: [str(name) for name in told["stages"]])


def path(task_id: UUID | str) -> str:
    """Where the task is."""
    return f"/v1/tasks/{quote(str(task_id), safe='')}"


def _post(target: str, members: Mapping[str, str | None], *, is_repeatable: bool = True) -> Request:
    body = json.dumps({name: value for name, value in members.items() if value is not None}).encode()
    return Request("POST", target, body, {"Content-Type": "application/json"}, is_repeatable=is_repeatable)


def _quoted(key: str) -> str:
    if not (1 <= len(key) <= 255 and key.isascii() and key.isprintable()):
        raise UnstorableError("an idempotency key is 1 to 255 printable ASCII characters", "/idempotency_key")
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _read(patience: Patience, answer: Answer, view: Callable[[Any], T]) -> T:
    try:
        return view(answer.json())
    except (LookupError, TypeError, ValueError, AttributeError):
        said = answer.text[:300]
        raise IntakeError(patience.server, answer.status, "with what no intake says", said, {}) from None
