"""What requests may ask for, member by member: when a value will do, how to say that, and how OpenAPI says it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from ..core.moment import parse_rfc3339
from ..core.task import Status
from .dead_letters import LARGEST_ID

ASKED_AT_ONCE = 10_000
"""Dead letters that one request may resolve, or name."""

PAGE = 1000
"""Rows of one page at most."""

MONTH = 30 * 24 * 3600
"""Seconds for which a service may have work, or ask to be left alone, at most."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a request's body, or a parameter of its query: when a value will do, and how to say that.

    ``schema`` is the same as JSON Schema. In a query values are text, whatever that says; one that is ``repeatable``
    may be given several times there, and ``schema`` is then that of the list.
    """

    is_valid: Callable[[Any], bool]
    description: str
    schema: Mapping[str, Any] = field(default_factory=dict)
    repeatable: bool = False


def is_uuid(value: Any) -> bool:
    """True of a UUID as RFC 9562 writes it; ``UUID()`` takes many other spellings."""
    try:
        return isinstance(value, str) and str(UUID(value)) == value.lower()
    except ValueError:
        return False


def is_moment(value: Any) -> bool:
    """True of a moment with its offset (RFC 3339)."""
    try:
        return isinstance(value, str) and isinstance(parse_rfc3339(value), datetime)
    except ValueError:
        return False


def unspaced(moment: str) -> str:
    """A moment of a query, in which a ``+`` that was not written as ``%2B`` has become a space."""
    return re.sub(r" (\d\d:\d\d)$", r"+\1", moment)


def is_text(value: Any) -> bool:
    """True of a string of 1 to 255 characters."""
    return isinstance(value, str) and 0 < len(value) <= 255 and "\x00" not in value


def _is_id(value: Any) -> bool:
    # To JSON 7.0 is a whole number too.
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return is_whole and not isinstance(value, bool) and 0 < value <= LARGEST_ID


def _is_number(value: str, most: int) -> bool:
    """True of digits that stand for 0 to ``most``."""
    return bool(
        isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20 and int(value) <= most
    )


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MONTH


TRACEPARENT = Member(lambda _: True, "the trace that the task goes on with (W3C Trace Context)", {"type": "string"})
ANY = Member(lambda _: True, "any JSON")
TEXT = Member(
    is_text,
    "a string of 1 to 255 characters, none of them NUL",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[^\\u0000]+$"},
)
FLAG = Member(lambda value: isinstance(value, bool), "true or false", {"type": "boolean"})
TASK_ID = Member(
    is_uuid, "a UUID of the form 01890a5d-ac96-774b-bcce-b302099a8057", {"type": "string", "format": "uuid"}
)
MOMENT = Member(
    is_moment,
    "a moment with its offset, as 2026-12-01T10:00:00+01:00 (RFC 3339)",
    {"type": "string", "format": "date-time"},
)
SECONDS = Member(
    _is_seconds,
    f"a number of seconds, more than 0 and at most {MONTH:,}",
    {"type": "number", "exclusiveMinimum": 0, "maximum": MONTH},
)
IDS = Member(
    lambda value: isinstance(value, list) and len(value) <= ASKED_AT_ONCE and all(map(_is_id, value)),
    f"a list of at most {ASKED_AT_ONCE:,} ids of dead letters",
    {"type": "array", "maxItems": ASKED_AT_ONCE, "items": {"type": "integer", "minimum": 1, "maximum": LARGEST_ID}},
)
TASK_IDS = Member(
    lambda value: isinstance(value, list) and len(value) <= ASKED_AT_ONCE and all(map(is_uuid, value)),
    f"a list of at most {ASKED_AT_ONCE:,} ids of tasks",
    {"type": "array", "maxItems": ASKED_AT_ONCE, "items": {"type": "string", "format": "uuid"}},
)
LIMIT = Member(
    lambda value: _is_id(value) and value <= ASKED_AT_ONCE,
    f"a number from 1 to {ASKED_AT_ONCE:,}",
    {"type": "integer", "minimum": 1, "maximum": ASKED_AT_ONCE},
)
PAGE_LIMIT = Member(
    lambda value: _is_number(value, PAGE) and int(value) > 0,
    f"a number from 1 to {PAGE:,}",
    {"type": "integer", "minimum": 1, "maximum": PAGE},
)
LETTER_CURSOR = Member(
    lambda value: _is_number(value, LARGEST_ID),
    "what the link to the next page has",
    {"type": "integer", "minimum": 0, "maximum": LARGEST_ID},
)
LONGEST_WAIT = 30
"""Seconds for which a request may wait for the end of a task."""

WAIT = Member(
    lambda value: _is_number(value, LONGEST_WAIT),
    f"for how many seconds to wait for the task's end, at most {LONGEST_WAIT}",
    {"type": "integer", "minimum": 0, "maximum": LONGEST_WAIT},
)
PREFER = Member(
    lambda _: True,
    f"wait=10 (RFC 7240): answer when the task has ended, or after so many seconds, at most {LONGEST_WAIT}",
    {"type": "string"},
)
LAST_EVENT = Member(
    lambda value: bool(re.fullmatch(r"[0-9]{1,18}(-[1-9][0-9]{0,18}){0,1000}", value)),
    "the id of the event after which a stream goes on",
    {"type": "string", "pattern": "^[0-9]{1,18}(-[1-9][0-9]{0,18}){0,1000}$"},
)
_STATUSES = [str(status) for status in Status]
STATUS = Member(lambda value: value in _STATUSES, f"one of {', '.join(_STATUSES)}", {"enum": _STATUSES})
_LABEL = r"[A-Za-z0-9_.\-]{1,63}:[^\x00]{0,255}"
LABEL = Member(
    lambda value: bool(re.fullmatch(_LABEL, value, re.DOTALL)),
    "name:value, as label=team:blue; given again, the tasks have both",
    {
        "type": "array",
        "maxItems": 16,
        "items": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,63}:[^\\u0000]{0,255}$"},
    },
    repeatable=True,
)
QUERY_MOMENT = Member(lambda value: is_moment(unspaced(value)), f"{MOMENT.description}, the + as %2B", MOMENT.schema)
ANY_ID = Member(
    is_text,
    "a task's id, the first 8 digits of it or more, an idempotency key, or a trace's id",
    TEXT.schema,
)
TASK_CURSOR = Member(is_text, "what the link to the next page has", {"type": "string", "maxLength": 255})
WHO_AND_WHY = {"by": TEXT, "reason": TEXT}
FILTERS = {"pipeline": TEXT, "stage": TEXT, "fingerprint": TEXT}
SELECTION = FILTERS | {"ids": IDS, "task_ids": TASK_IDS}
LISTING = FILTERS | {"task_id": TASK_ID, "limit": PAGE_LIMIT, "cursor": LETTER_CURSOR}
TASKS = {
    "status": STATUS,
    "pipeline": TEXT,
    "stage": TEXT,
    "label": LABEL,
    "created_after": QUERY_MOMENT,
    "created_before": QUERY_MOMENT,
    "fingerprint": TEXT,
    "q": ANY_ID,
    "limit": PAGE_LIMIT,
    "cursor": TASK_CURSOR,
}
