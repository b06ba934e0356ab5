"""Follow a task: its events as they come, over server-sent events where the intake has them, else by looking again."""

import json
from collections.abc import Generator, Iterator
from typing import TypeAlias
from uuid import UUID

from ..core.event import EventType
from .calls import FIRST, LONGEST, path, task
from .exchange import EVENT_STREAM, Answer, Lost, Open, Read, Reply, Request, Step, pause
from .patience import Patience, Wait
from .views import TaskEvent, task_event

ENDS = (EventType.TASK_COMPLETED, EventType.TASK_FAILED, EventType.TASK_CANCELLED)
"""After these a task may be at its end, or go on: a person may have requeued it since."""

SILENCE = 45.0
"""Seconds without a byte after which a stream counts as lost; the intake sends a comment more often."""

Journey: TypeAlias = Generator[Step | TaskEvent, Reply, None]


def follow(task_id: UUID | str, patience: Patience) -> Journey:
    """Each event of the task once, until it goes no further by itself. Raises as ``Patience.ask`` does."""
    yield from _Follower(task_id, patience).follow()


class _Follower:
    def __init__(self, task_id: UUID | str, patience: Patience) -> None:
        self._task_id = task_id
        self._patience = patience
        # Not just the last position: an event of an author's longer transaction comes later with a lower one.
        self._seen: set[int] = set()
        self._last = ""

    def follow(self) -> Journey:
        wait = Wait(self._patience)
        while True:
            headers = {"Accept": EVENT_STREAM} | ({"Last-Event-ID": self._last} if self._last else {})
            opened = yield from self._patience.ask(
                Open(Request("GET", f"{path(self._task_id)}/events", headers=headers, silence=SILENCE)),
                also=frozenset({503}),
            )
            if opened.status == 503:  # as many follow as may; or Postgres is away, for which catching up has patience
                if (yield from self._catch_up()):
                    return
                yield from pause(max(opened.retry_after, LONGEST))
                continue
            if not opened.is_stream:
                yield from self._new(opened)
                yield from self._look_again()
                return
            heard = len(self._seen)
            if (yield from self._listen()):
                return
            if len(self._seen) > heard:
                wait.renew()
            if not (yield from wait("the stream of events ended")):
                raise self._patience.unanswered("the stream of events ends without one", may_have_happened=False)

    def _listen(self) -> Generator[Step | TaskEvent, Reply, bool]:
        """Read a stream to its end; true if the task is at its end as well."""
        stream = EventStream()
        while True:
            reply = yield Read()
            if isinstance(reply, Lost) or not reply:
                return (yield from self._catch_up())
            assert isinstance(reply, bytes)
            for number, data in stream.feed(reply):
                self._last = number or self._last
                event = _event(data)
                if event is None or event.position in self._seen:
                    continue
                self._seen.add(event.position)
                yield event
                if event.type.partition(":")[0] in ENDS and (yield from self._catch_up()):
                    return True

    def _look_again(self) -> Journey:
        delay = FIRST
        while not (yield from self._catch_up()):
            yield from pause(delay)
            delay = min(delay * 1.5, LONGEST)

    def _catch_up(self) -> Generator[Step | TaskEvent, Reply, bool]:
        """What is not known yet of the journey; true if the task has ended with that."""
        # The task first: its end then is in the journey that is read afterwards.
        view = yield from task(self._task_id, self._patience)
        answer = yield from self._patience.ask(Request("GET", f"{path(self._task_id)}/events"))
        yield from self._new(answer)
        return view.is_terminal

    def _new(self, answer: Answer) -> Journey:
        document = answer.json()
        for told in document["events"] if isinstance(document, dict) else ():
            event = task_event(told)
            if event.position not in self._seen:
                self._seen.add(event.position)
                yield event


class EventStream:
    """Takes a stream of server-sent events apart, as it comes in."""

    def __init__(self) -> None:
        self._rest = b""
        self._id = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[tuple[str, str]]:
        """The id and the data of each event that is complete."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            name, _, value = line.decode(errors="replace").removesuffix("\r").partition(":")
            value = value.removeprefix(" ")
            if name == "id":
                self._id = value
            elif name == "data":
                self._data.append(value)
            elif not name and not value and self._data:
                data, self._data = "\n".join(self._data), []
                yield self._id, data


def _event(data: str) -> TaskEvent | None:
    """The event that ``data`` tells of; ``None`` if it tells of something else."""
    try:
        return task_event(json.loads(data))
    except (ValueError, LookupError, TypeError):
        return None
