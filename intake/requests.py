"""From a request to submissions: limits, media types, and every fault of a body at once."""

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any
from uuid import UUID

from starlette.requests import ClientDisconnect, Request

from ..core.errors import UnstorableError
from ..core.jsontext import decode, encode_checked
from ..core.moment import parse_rfc3339
from ..core.payload_schema import PayloadSchema
from ..core.priority import WORDS, Priority
from ..core.task import new_task_id
from ..core.telemetry import continued, sent
from ..outbox.submit import Submission
from .members import MOMENT, TASK_ID, Member
from .problems import FAULTS, Fault, Problem, invalid, malformed

LARGE = 64 * 1024
"""Bytes of JSON beyond which it is read in a thread: that takes a while, and others want to be served meanwhile."""

MEMBERS = {"pipeline", "payload", "task_id", "labels", "not_before", "deadline", "priority"}
"""What a task is asked for with."""

LINE_MEMBERS = MEMBERS | {"idempotency_key"}
"""The same in a batch."""

LABELS = 16
LABEL_LENGTH = 255

_KEY = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?")
KEY = Member(
    lambda value: bool(_KEY.fullmatch(value)),
    "one string of 1 to 255 printable ASCII characters",
    {
        "type": "string",
        "pattern": r'^(?:[!#-~]|[!#-~][ -~]{0,253}[!-~]|"[!#-\[\]-~](?:[ !#-\[\]-~]{0,253}[!#-\[\]-~])?")$',
    },
)
"""The header ``Idempotency-Key``: the string in quotes, as the draft has it, or bare."""

_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
_LABEL = re.compile(r"[A-Za-z0-9_.-]{1,63}")


def check_head(request: Request, *, media_type: str, limit: int) -> None:
    """Raise a ``Problem`` unless the body is of ``media_type``, and is not said to have more than ``limit`` bytes."""
    # Of two headers each reader may heed another.
    given = ", ".join(one.partition(";")[0].strip().lower() for one in request.headers.getlist("content-type"))
    if given != media_type:
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "unsupported-media-type",
            f"send Content-Type: {media_type}, not {given[:60] or 'none'}",
            headers={"Accept-Post": media_type},
        )
    if "content-encoding" in request.headers:
        _refuse_coding(request)
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > limit:  # int() refuses thousands of digits
        raise too_large(f"the body has more than {limit:,} bytes")


async def read_body(request: Request, *, media_type: str, limit: int) -> bytes:
    """The body, of ``media_type``, at most ``limit`` bytes. Raises a ``Problem`` with 415, 413 or 400."""
    check_head(request, media_type=media_type, limit=limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise too_large(f"the body has more than {limit:,} bytes")
            chunks.append(chunk)
    except ClientDisconnect as error:
        raise malformed("the connection ended before the body did") from error
    return b"".join(chunks)


def _refuse_coding(request: Request) -> None:
    coding = ", ".join(request.headers.getlist("content-encoding")).strip()
    if coding.lower() not in ("", "identity"):
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "unsupported-content-encoding",
            f"send the body as it is, without Content-Encoding: {coding[:60]}",
            headers={"Accept-Encoding": "identity"},
        )


def idempotency_key(request: Request) -> str | None:
    """The value of ``Idempotency-Key``, quoted (as the draft has it) or bare; ``None`` without the header."""
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    value = given[0].strip()
    if value.startswith('"'):
        quoted = _QUOTED.fullmatch(value)
        value = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else ""
    if len(given) > 1 or not _KEY.fullmatch(value):
        raise malformed(f"Idempotency-Key must be {KEY.description}")
    return value


def submission(
    body: bytes,
    *,
    key: str | None,
    traceparent: str | None,
    schemas: Mapping[str, PayloadSchema],
    allow_key: bool = False,
) -> Submission:
    """What ``body`` asks for. Raises a ``Problem`` with 400 or 422 that names every fault.

    ``key`` is that of the header; with ``allow_key`` the body may bring its own as ``idempotency_key``. ``schemas`` are
    those that payloads must meet, by their pipelines.
    """
    document = _document(body)
    if not isinstance(document, dict):
        raise invalid(Fault("a task is a JSON object with the members pipeline and payload"))
    faults = _unknown(document, LINE_MEMBERS if allow_key else MEMBERS)
    pipeline = document.get("pipeline")
    if not isinstance(pipeline, str) or not pipeline:
        faults.append(Fault("the name of a pipeline is required, as a string", "/pipeline"))
    if "payload" not in document:
        faults.append(Fault("a payload is required; null is one", "/payload"))
    elif isinstance(pipeline, str) and (schema := schemas.get(pipeline)):
        faults += [
            Fault(detail, f"/payload{pointer}") for pointer, detail in schema.faults(document["payload"], most=FAULTS)
        ]
    task_id = _task_id(document.get("task_id"), faults)
    labels = _labels(document.get("labels"), faults)
    not_before, deadline = (_moment(document, member, faults) for member in ("not_before", "deadline"))
    priority = _priority(document.get("priority"), faults)
    if allow_key and document.get("idempotency_key") is not None:
        own = document["idempotency_key"]
        if isinstance(own, str) and _KEY.fullmatch(own):
            key = own
        else:
            faults.append(Fault("a string of 1 to 255 printable ASCII characters", "/idempotency_key"))
    if faults:
        raise invalid(*faults)
    chosen = task_id or new_task_id()
    # Of many each is sent by itself: a trace of thousands of tasks is of no use.
    trace = sent(str(pipeline), chosen, traceparent) if allow_key else continued(traceparent)
    return Submission(
        task_id=chosen,
        has_own_id=task_id is not None,
        pipeline=str(pipeline),
        payload=encode_checked(document["payload"]),
        labels=encode_checked(labels),
        traceparent=trace,
        key=key,
        not_before=not_before,
        deadline=deadline,
        priority=priority,
    )


def submissions(
    lines: Iterable[bytes | None], *, limit: int, traceparent: str | None, schemas: Mapping[str, PayloadSchema]
) -> list[Submission | Problem]:
    """What each line of a batch asks for, or what is wrong with it; ``None`` is one with more than ``limit`` bytes."""
    asked: list[Submission | Problem] = []
    for line in lines:
        try:
            if line is None:
                raise too_large(f"the line has more than {limit:,} bytes")
            asked.append(submission(line, key=None, traceparent=traceparent, schemas=schemas, allow_key=True))
        except Problem as problem:
            asked.append(problem)
    return asked


def path_id(request: Request) -> UUID:
    """The id of the task that the path names. Raises a ``Problem`` with 404."""
    try:
        return UUID(request.path_params["task_id"])
    except ValueError:
        raise Problem(HTTPStatus.NOT_FOUND, "not-found", "there is no such task: its id is no UUID") from None


async def read_members(request: Request, known: Mapping[str, Member], *, limit: int = 1024 * 1024) -> dict[str, Any]:
    """The members of a body that may be left out, those that are null with it. Raises a ``Problem``."""
    if request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers:
        return {}
    document = _document(await read_body(request, media_type="application/json", limit=limit))
    if not isinstance(document, dict):
        raise invalid(Fault(f"a JSON object with any of the members {', '.join(sorted(known))}"))
    faults = _unknown(document, known)
    given = {name: value for name, value in document.items() if value is not None and name in known}
    faults += [
        Fault(known[name].description, f"/{_escaped(name)}") for name in given if not known[name].is_valid(given[name])
    ]
    if faults:
        raise invalid(*faults)
    return given


def read_query(request: Request, known: Mapping[str, Member]) -> dict[str, Any]:
    """The parameters of the query, lists of those that are repeatable. Raises a ``Problem`` with 400 that names the
    first that is wrong."""
    given: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise malformed(f"unknown parameter {name[:60]!r}; known are {', '.join(sorted(known))}")
        if name in given and not known[name].repeatable:
            raise malformed(f"the parameter {name} is given twice")
        if not known[name].is_valid(value):
            raise malformed(f"the parameter {name} must be {known[name].description}")
        if known[name].repeatable:
            given.setdefault(name, []).append(value)
            if len(given[name]) > LABELS:
                raise malformed(f"the parameter {name} is given more than {LABELS} times")
        else:
            given[name] = value
    return given


def _document(body: bytes) -> Any:
    try:
        return decode(body)
    except UnstorableError as error:
        if error.malformed:
            raise malformed(error.detail) from error
        raise invalid(Fault(error.detail, error.pointer)) from error


def _unknown(document: Mapping[str, Any], known: Collection[str]) -> list[Fault]:
    if not (unknown := [name for name in document if name not in known]):
        return []
    detail = f"unknown member; known are {', '.join(sorted(known))}"
    return [Fault(detail, f"/{_escaped(name)}") for name in unknown]


def _task_id(value: Any, faults: list[Fault]) -> UUID | None:
    if value is None:
        return None
    if TASK_ID.is_valid(value):
        return UUID(value)
    faults.append(Fault(TASK_ID.description, "/task_id"))
    return None


def _moment(document: Mapping[str, Any], member: str, faults: list[Fault]) -> datetime | None:
    value = document.get(member)
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return parse_rfc3339(value)
    except ValueError:
        pass
    faults.append(Fault(MOMENT.description, f"/{member}"))
    return None


def _priority(value: Any, faults: list[Fault]) -> Priority:
    if value is None:
        return Priority.NORMAL
    if isinstance(value, str) and value in WORDS:
        return WORDS[value]
    faults.append(Fault(f"one of {', '.join(WORDS)}", "/priority"))
    return Priority.NORMAL


def _labels(value: Any, faults: list[Fault]) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > LABELS:
        faults.append(Fault(f"an object of at most {LABELS} strings", "/labels"))
        return {}
    for name, label in value.items():
        pointer = f"/labels/{_escaped(name)}"
        if not _LABEL.fullmatch(name):
            faults.append(Fault("a label's name is 1 to 63 letters, digits, '_', '.' and '-'", pointer))
        elif not isinstance(label, str) or len(label) > LABEL_LENGTH:
            faults.append(Fault(f"a label is a string of at most {LABEL_LENGTH} characters", pointer))
    return value


def too_large(detail: str) -> Problem:
    """413: more than is taken at once."""
    return Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large", detail)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
