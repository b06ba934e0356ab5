"""A task to be submitted, and its JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

Moment: TypeAlias = datetime | str
"""With its offset from UTC; as text in RFC 3339."""

Urgency: TypeAlias = Literal["high", "normal", "low"]


@dataclass(frozen=True, slots=True)
class NewTask:
    """One of many tasks, with more than its payload. ``key`` is its idempotency key."""

    payload: Any = field(repr=False)
    key: str | None = None
    task_id: UUID | None = None
    labels: Mapping[str, str] | None = None
    not_before: Moment | None = None
    deadline: Moment | None = None
    priority: Urgency | None = None

    def members(self) -> dict[str, Any]:
        """Its members but the pipeline and the key, those that are given."""
        given = {
            "task_id": None if self.task_id is None else str(self.task_id),
            "labels": None if self.labels is None else dict(self.labels),
            "not_before": _text(self.not_before),
            "deadline": _text(self.deadline),
            "priority": self.priority,
        }
        return {"payload": self.payload} | {name: value for name, value in given.items() if value is not None}


def _text(moment: Moment | None) -> str | None:
    return moment.isoformat() if isinstance(moment, datetime) else moment
