"""What a client and the intake exchange, without the network: a conversation is a generator.

It yields a step, and whoever runs it performs that and sends back what came of it: for a ``Request`` the ``Answer`` or
that it was ``Lost``, after a ``Pause`` nothing, for an ``Open`` an ``Answer`` without its body if it is a stream, for a
``Read`` the next bytes of that stream, none at its end. So the clients, sync and async, only perform.
"""

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeAlias, TypeVar

SILENCE = 60.0
"""Seconds without a byte after which a request counts as lost."""

EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Request:
    """A request. One that is not ``is_repeatable`` is sent again only if it cannot have been carried out."""

    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = True
    silence: float = SILENCE


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; the names of ``headers`` are in lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def text(self) -> str:
        """The body."""
        return self.body.decode(errors="replace")

    @property
    def is_stream(self) -> bool:
        """True if it is a stream of events, whose body is read bit by bit."""
        return self.status == 200 and self.headers.get("content-type", "").startswith(EVENT_STREAM)

    @property
    def retry_after(self) -> float:
        """In how many seconds the request may be repeated; 0 if that is not said."""
        value = self.headers.get("retry-after", "").strip()
        if value.isdecimal():
            return float(value)
        try:
            moment = parsedate_to_datetime(value)
        except ValueError:
            return 0.0
        return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds())

    def json(self) -> Any:
        """The value of a body in JSON; ``None`` if it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer has come. If the request ``was_sent``, it may have been carried out."""

    reason: str
    was_sent: bool = True


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Open:
    """Send a request whose answer may be a stream; one that is open already is closed."""

    request: Request


@dataclass(frozen=True, slots=True)
class Read:
    """Read on in the stream that is open."""


Step: TypeAlias = Request | Pause | Open | Read
Reply: TypeAlias = Answer | Lost | bytes | None

T = TypeVar("T")
Conversation: TypeAlias = Generator[Step, Reply, T]


def exchange(request: Request | Open) -> Conversation[Answer | Lost]:
    """One request and what comes of it."""
    reply = yield request
    assert isinstance(reply, Answer | Lost)
    return reply


def pause(seconds: float) -> Conversation[None]:
    """Wait."""
    yield Pause(seconds)
