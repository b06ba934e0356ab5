"""Facts about tasks: what is appended to the outbox, and the envelope in which it travels through Redis."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from .errors import UnstorableError


class EventType(StrEnum):
    """The events that postroad itself appends; authors may append others of their own naming."""

    TASK_CREATED = "TaskCreated"
    TASK_COMPLETED = "TaskCompleted"
    TASK_FAILED = "TaskFailed"
    TASK_CANCELLED = "TaskCancelled"
    TASK_RETRIED = "TaskRetried"
    STAGE_REQUESTED = "StageRequested"
    STAGE_COMPLETED = "StageCompleted"
    STAGE_FAILED = "StageFailed"
    STAGE_SNOOZED = "StageSnoozed"
    STAGE_HANDED = "StageHanded"
    STAGE_REPORTED = "StageReported"
    STAGE_DEAD = "StageDead"
    STAGE_REQUEUED = "StageRequeued"
    STAGE_DROPPED = "StageDropped"
    DEAD_LETTER_DISCARDED = "DeadLetterDiscarded"


_NAME = re.compile(r"[A-Z][A-Za-z0-9]{0,63}")


@dataclass(frozen=True, slots=True)
class Event:
    """A fact about one task, to be appended in the transaction that makes it true.

    ``type`` is in the past tense and in CamelCase (``HostReserved``); ``stage`` says of which stage it tells, if
    of one; ``data`` is any JSON object. Raises ``UnstorableError`` if ``type`` is not such a name.
    """

    type: str
    task_id: UUID
    pipeline: str
    stage: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    traceparent: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.type):
            raise UnstorableError(f"an event's type is a CamelCase name of up to 64 letters, not {self.type!r}")

    def __str__(self) -> str:
        return f"{self.type}:{self.stage}" if self.stage else str(self.type)


@dataclass(frozen=True, slots=True)
class Envelope:
    """One entry of a stage's stream. It names the task; the data stay in Postgres.

    ``entry_id`` is Redis' id of the entry; ``deliveries`` counts how often it has been handed to a worker since
    its last recorded outcome: more than one means that a worker died with it.
    """

    entry_id: str
    task_id: UUID
    type: str
    event: int
    time: int
    traceparent: str | None
    deliveries: int = 1

    @property
    def asked_at(self) -> datetime:
        """When the transaction of the event began, by the clock of Postgres."""
        return datetime.fromtimestamp(self.time / 1000, UTC)

    @classmethod
    def parse(cls, entry_id: str, fields: Mapping[str, str] | None, deliveries: int = 1) -> "Envelope | None":
        """The envelope of an entry's fields; ``None`` if the entry was deleted or is none of ours."""
        if not fields:
            return None
        try:
            return cls(
                entry_id=entry_id,
                task_id=UUID(fields["task"]),
                type=fields["type"],
                event=int(fields["event"]),
                time=int(fields["time"]),
                traceparent=fields.get("traceparent") or None,
                deliveries=deliveries,
            )
        except (KeyError, ValueError):
            return None
