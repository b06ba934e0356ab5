"""A task, the states that it can be in, and how it gets from one to the next."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic
from uuid import UUID

from typing_extensions import TypeVar


class Status(StrEnum):
    """Where a task stands as a whole."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True if the task goes no further by itself."""
        return self in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


TRANSITIONS: tuple[tuple[Status, str, Status], ...] = (
    (Status.PENDING, "a stage has an outcome", Status.IN_PROGRESS),
    (Status.PENDING, "its only stage is done", Status.COMPLETED),
    (Status.PENDING, "a stage is a dead letter", Status.FAILED),
    (Status.PENDING, "cancel", Status.CANCELLED),
    (Status.IN_PROGRESS, "the last stage is done", Status.COMPLETED),
    (Status.IN_PROGRESS, "a stage is a dead letter", Status.FAILED),
    (Status.IN_PROGRESS, "cancel", Status.CANCELLED),
    (Status.FAILED, "its last dead letter is requeued", Status.IN_PROGRESS),
    (Status.FAILED, "cancel", Status.CANCELLED),
    (Status.FAILED, "retry from a stage", Status.IN_PROGRESS),
    (Status.COMPLETED, "retry from a stage", Status.IN_PROGRESS),
)
"""All the ways from one status to another. Every statement that writes ``task.status`` keeps to them by its
``where``. Only ``cancelled`` is final: a person may let a completed task run again from a stage."""


def state_diagram() -> str:
    """The transitions as a Mermaid diagram; ``docs/architecture.md`` holds this very text."""
    lines = ["stateDiagram-v2", f"    [*] --> {Status.PENDING}: accepted"]
    lines += [f"    {before} --> {after}: {cause}" for before, cause, after in TRANSITIONS]
    lines += [f"    {status} --> [*]" for status in Status if status.is_terminal]
    return "\n".join(lines)


P = TypeVar("P", default=Any)


@dataclass(frozen=True, slots=True)
class Task(Generic[P]):
    """What a handler is given. ``Task[Order]``, where ``Order`` is a ``TypedDict``, says what the payload is.

    ``payload`` is what the client submitted; ``results`` maps each stage that is done to what it returned;
    ``attempt`` counts from 1. An attempt ends at the ``deadline``, if the client gave one.
    """

    task_id: UUID
    pipeline: str
    stage: str
    payload: P
    results: Mapping[str, Any]
    attempt: int
    labels: Mapping[str, str]
    created_at: datetime
    traceparent: str
    lease: str | None = field(default=None, repr=False)
    """The token by which a service reports how the work ended, if it does so later."""
    deadline: datetime | None = None

    @property
    def idempotency_key(self) -> str:
        """``<task_id>/<stage>``: the same over all attempts; hand it to every service that you call."""
        return f"{self.task_id}/{self.stage}"

    def document(self) -> dict[str, Any]:
        """What a service or a program is given, as JSON; which attempt it is does not change it."""
        return {
            "task_id": str(self.task_id),
            "pipeline": self.pipeline,
            "stage": self.stage,
            "idempotency_key": self.idempotency_key,
            "created_at": self.created_at.isoformat(),
            "labels": dict(self.labels),
            "payload": self.payload,
            "results": dict(self.results),
        }


def new_task_id() -> UUID:
    """A fresh UUID of version 7: 48 bits of milliseconds, then random bits (RFC 9562 §5.7).

    Ids made later sort later, so inserts go to the right edge of the primary key.
    """
    milliseconds = time.time_ns() // 1_000_000
    random_bits = int.from_bytes(os.urandom(10), "big")
    value = (milliseconds & 0xFFFF_FFFF_FFFF) << 80
    value |= 0x7 << 76 | (random_bits >> 62 & 0xFFF) << 64
    value |= 0b10 << 62 | random_bits & 0x3FFF_FFFF_FFFF_FFFF
    return UUID(int=value)
