"""Cursors: where the next page of a list begins, as an opaque word that only fits the filter it was made for."""

import base64
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VERSION = 1


class Place(NamedTuple):
    """A task's place in the order of lists, the newest first."""

    created_at: datetime
    task_id: UUID


def cursor_of(place: Place, asked: Mapping[str, Any]) -> str:
    """The cursor for what comes after ``place`` in the list of what ``asked`` says."""
    microseconds = (place.created_at - _EPOCH) // timedelta(microseconds=1)
    told = json.dumps([_VERSION, microseconds, place.task_id.hex, _digest(asked)], separators=(",", ":"))
    return base64.urlsafe_b64encode(told.encode()).rstrip(b"=").decode()


def place_of(cursor: str, asked: Mapping[str, Any]) -> Place:
    """What ``cursor_of`` was given. Raises ``ValueError`` if it is no cursor, or was made for another filter."""
    try:
        told = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        version, microseconds, task_id, digest = told
        place = Place(_EPOCH + timedelta(microseconds=int(microseconds)), UUID(task_id))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError("the cursor is none of ours; leave it out for the first page") from error
    if version != _VERSION or digest != _digest(asked):
        raise ValueError("the cursor belongs to another filter; leave it out for the first page of this one")
    return place


def _digest(asked: Mapping[str, Any]) -> str:
    told = json.dumps(sorted((name, value) for name, value in asked.items() if value))
    return hashlib.sha256(told.encode()).hexdigest()[:16]
