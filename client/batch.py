"""Many tasks: gathered into requests, and the answer to each.

What is gathered is one of three: a ``NewTask``; ``bytes``, a line of NDJSON with the members of a task, with or without
the pipeline; anything else is a payload.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeAlias

from ..core.errors import IntakeError, UnansweredError, UnstorableError
from ..core.jsontext import decode, encode
from .exchange import Answer, Conversation, Request
from .new_task import NewTask
from .patience import LATER, Patience, Wait
from .refusal import Refused, refused, refused_here
from .views import Submitted, submitted

LINES = 1000
"""Lines in one request: as many as share a commit in the intake."""

BYTES = 1024 * 1024
"""A request that has come to so many bytes takes no more lines: the largest line that the intake takes by default."""

MEDIA_TYPE = "application/x-ndjson"


@dataclass(slots=True)  # frozen would take longer to make, and there are many
class Line:
    """A line as it is sent."""

    number: int
    text: bytes
    key: str | None


Outcome: TypeAlias = Submitted | Refused
Group: TypeAlias = list[Line | Refused]
"""The lines of one request, and among them those that no intake would accept."""


class Gatherer:
    """Gathers lines into groups of ``lines``, or of fewer large ones.

    A line with neither key nor id is given a key of ``run`` and its number, so that it may be sent twice. ``defaults``
    are members for lines that lack them.
    """

    def __init__(self, pipeline: str, run: str, defaults: Mapping[str, Any], *, lines: int = LINES) -> None:
        self._pipeline = pipeline
        self._run = run
        self._defaults = {name: value for name, value in defaults.items() if value is not None}
        self._lines = lines
        self._number = 0
        self._group: Group = []
        self._bytes = 0

    def add(self, item: Any) -> bool:
        """Add ``item`` to the group; true if that is full then. Blank lines are counted, and nothing else."""
        self._number += 1
        line = self._line(item)
        if line is None:
            return False
        self._group.append(line)
        self._bytes += len(line.text) if isinstance(line, Line) else 0
        return len(self._group) >= self._lines or self._bytes >= BYTES

    def take(self) -> Group:
        """What has been gathered; the next group begins."""
        group, self._group, self._bytes = self._group, [], 0
        return group

    def _line(self, item: Any) -> Line | Refused | None:
        if isinstance(item, bytes) and not item.strip():
            return None
        try:
            document = self._document(item)
            if isinstance(document, Refused):
                return document
            if document.get("idempotency_key") is None and document.get("task_id") is None:
                document["idempotency_key"] = f"submit-{self._run}-{self._number}"
            for member, value in self._defaults.items():
                if document.get(member) is None:
                    document[member] = value
            # Of a line we know already that Postgres can keep it.
            text = json.dumps(document, separators=(",", ":")) if isinstance(item, bytes) else encode(document)
        except UnstorableError as error:
            return refused_here(self._number, str(error))
        key = document.get("idempotency_key")
        return Line(self._number, text.encode(), key if isinstance(key, str) else None)

    def _document(self, item: Any) -> dict[str, Any] | Refused:
        if not isinstance(item, bytes):
            task = item if isinstance(item, NewTask) else NewTask(item)
            key = {} if task.key is None else {"idempotency_key": task.key}
            return {"pipeline": self._pipeline} | task.members() | key
        document = decode(item)
        if not isinstance(document, dict):
            return refused_here(self._number, "not an object with the member payload")
        if document.setdefault("pipeline", self._pipeline) != self._pipeline:
            return refused_here(self._number, f"it is for the pipeline {document['pipeline']!r:.80}")
        return document


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of the lines of a group, in their order; of all of them, unless an ``error`` says why not."""

    outcomes: list[Outcome]
    error: IntakeError | UnansweredError | None = None


def send(group: Group, patience: Patience) -> Conversation[Sent]:
    """Send the lines of a group.

    Lines that came too fast, met a server that is away, or were not taken are sent again. What ``Patience.ask`` raises
    is the error at the end.
    """
    outcomes: dict[int, Outcome] = {line.number: line for line in group if isinstance(line, Refused)}
    lines = [line for line in group if isinstance(line, Line)]
    wait = Wait(patience)
    error: IntakeError | UnansweredError | None = None
    while lines and error is None:
        later: list[Line] = []
        try:
            answers, after = yield from _post(lines, patience)
            for line, body in zip(lines, answers, strict=True):
                if body["status"] in LATER or body.get("rest"):
                    later.append(line)
                    reason = f"{body['status']} {body.get('detail', '')}"
                else:
                    outcomes[line.number] = _outcome(line, body, patience.server)
            if len(later) < len(lines):
                wait.renew()
            if later and not (yield from wait(reason, after)):
                raise patience.unanswered(reason, may_have_happened=True)
        except (IntakeError, UnansweredError) as raised:
            error = raised
        lines = later
    return Sent([outcomes[line.number] for line in group if line.number in outcomes], error)


def _post(lines: Sequence[Line], patience: Patience) -> Conversation[tuple[list[dict[str, Any]], float]]:
    """The answer to each line, and when to come again with those that are to come again."""
    body = b"\n".join(line.text for line in lines)
    request = Request("POST", "/v1/tasks:batch", body, {"Content-Type": MEDIA_TYPE})
    too_large = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    answer = yield from patience.ask(request, also=frozenset({too_large}))
    if answer.status != too_large:
        return _bodies(patience.server, answer, len(lines)), answer.retry_after
    if len(lines) == 1:
        return [{"status": 413, "title": too_large.phrase, "detail": "too large for the intake"}], 0.0
    middle = len(lines) // 2
    first, after = yield from _post(lines[:middle], patience)
    second, later = yield from _post(lines[middle:], patience)
    return first + second, max(after, later)


def _bodies(server: str, answer: Answer, count: int) -> list[dict[str, Any]]:
    """The answers to ``count`` lines. One with ``rest`` is the last, and stands for all lines from its own on."""
    try:
        # As one document: a call for each line would take twice as long. Within JSON there is no bare newline.
        bodies: list[dict[str, Any]] = json.loads("[" + ",".join(answer.text.strip().split("\n")) + "]")
        if bodies and bodies[-1].get("rest"):
            bodies += bodies[-1:] * (count - len(bodies))
        if len(bodies) == count and all(isinstance(body["status"], int) for body in bodies):
            return bodies
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    raise _no_answer(server, answer.text)


def _outcome(line: Line, body: Mapping[str, Any], server: str) -> Outcome:
    if body["status"] != HTTPStatus.ACCEPTED:
        return refused(line.number, body)
    try:
        return submitted(body, key=line.key, is_replay=bool(body.get("replayed")), number=line.number)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise _no_answer(server, str(body)) from None


def _no_answer(server: str, text: str) -> IntakeError:
    return IntakeError(server, HTTPStatus.OK, "with what is no answer to a batch", text[:300], {})
