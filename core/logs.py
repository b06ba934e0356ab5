"""Log lines, and the attempt that they belong to.

While a handler runs, whatever is logged is a line of its attempt: it carries the task's fields, and the last lines are
kept with the outcome. A context variable says which attempt that is, in tasks and threads that the handler starts too.
"""

import contextlib
import json
import logging
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from .jsontext import storable
from .task import Task
from .telemetry import trace_id

FIELDS = (
    "pipeline", "stage", "task_id", "attempt", "outcome", "trace_id", "duration_ms", "worker", "shard", "entries",
    "method", "route", "status",
)  # fmt: skip
"""The fields of a log line beside time, level and message. There is none for payloads and results."""

KEPT_LINES, KEPT_CHARACTERS = 50, 8_000
"""How much of what an attempt logs is kept with it: the last so many lines, and no more than so much text."""


class Attempted:
    """The attempt that runs, as its log lines tell of it: its fields, and the last of these lines."""

    def __init__(self, task: Task) -> None:
        self.fields: Mapping[str, Any] = {
            "pipeline": task.pipeline,
            "stage": task.stage,
            "task_id": str(task.task_id),
            "attempt": task.attempt,
            "trace_id": trace_id(task.traceparent),
        }
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)

    def keep(self, line: str) -> None:
        """Keep ``line`` as the last one."""
        self._lines.append(line[-KEPT_CHARACTERS:])

    @property
    def lines(self) -> tuple[str, ...]:
        """What is kept, oldest first, as text that Postgres takes."""
        kept: deque[str] = deque()
        left = KEPT_CHARACTERS
        for line in reversed(tuple(self._lines)):
            left -= len(line)
            if left < 0:
                break
            kept.appendleft(storable(line))
        return tuple(kept)


_attempted: ContextVar[Attempted | None] = ContextVar("postroad_attempt", default=None)


@contextlib.contextmanager
def lines_of(task: Task) -> Iterator[Attempted]:
    """What is logged in the block is a line of this attempt."""
    attempted = Attempted(task)
    token = _attempted.set(attempted)
    try:
        yield attempted
    finally:
        _attempted.reset(token)


def keep(line: str) -> None:
    """Keep a line with the attempt that runs, without logging it; nothing outside of one."""
    if (attempted := _attempted.get()) is not None:
        attempted.keep(line)


class AttemptFields(logging.Filter):
    """Gives each record the fields of the attempt in which it was logged, unless it has its own.

    For handlers of one's own; those of ``configure_logging`` have it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """True: no record is left out."""
        if (attempted := _attempted.get()) is not None:
            for name, value in attempted.fields.items():
                record.__dict__.setdefault(name, value)
        return True


class Keeper(logging.Handler):
    """Keeps what is logged in an attempt, at INFO and above, with the attempt."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep ``record``, if an attempt runs."""
        if (attempted := _attempted.get()) is None:
            return
        try:
            line = f"{_moment(record)} {record.levelname} {record.getMessage()}"
            if record.exc_info and record.exc_info[0]:
                line += "\n" + logging.Formatter().formatException(record.exc_info)
            attempted.keep(line)
        except Exception:
            self.handleError(record)


class JSONLines(logging.Formatter):
    """A JSON object a line: ``timestamp``, ``level``, ``logger``, ``message``, and those of ``FIELDS`` that it has."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info and record.exc_info[0]:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class ConsoleLines(logging.Formatter):
    """The same for a person at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
        fields = " ".join(f"{name}={getattr(record, name)}" for name in FIELDS if hasattr(record, name))
        line = f"{moment} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip()
        if record.exc_info and record.exc_info[0]:
            line += "\n" + self.formatException(record.exc_info)
        return line


def configure_logging(level: str, *, console: bool | None = None) -> None:
    """Log to stderr: as JSON lines, or for a person if ``console`` (by default: if stderr is a terminal)."""
    handler = logging.StreamHandler(sys.stderr)
    for_person = sys.stderr.isatty() if console is None else console
    handler.setFormatter(ConsoleLines() if for_person else JSONLines())
    handler.addFilter(AttemptFields())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    keep_lines()
    for noisy in ("alembic", "sqlalchemy", "asyncio", "httpx2", "urllib3"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))


def keep_lines() -> None:
    """Keep the lines of attempts from now on. Again after the author's code was loaded: that may configure logging."""
    root = logging.getLogger()
    if not any(isinstance(handler, Keeper) for handler in root.handlers):
        root.addHandler(Keeper())


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
