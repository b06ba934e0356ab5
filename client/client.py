"""The client for code without an event loop."""

import ssl
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

import httpx2

from . import calls, transport
from .address import Address
from .batch import LINES, Gatherer, Group, Outcome, send
from .exchange import Answer, Conversation, Lost, Open, Pause, Read, Reply, Request, Step
from .journey import follow
from .new_task import Moment, NewTask, Urgency
from .patience import Patience
from .views import Submitted, TaskEvent, TaskView

T = TypeVar("T")


class Client:
    """The intake at ``url``, as ``http://127.0.0.1:8080``. Several threads may use it; close it, or use ``with``.

    A request that gets no answer, or 429, 502, 503 or 504, is sent again, with growing pauses and not before
    ``Retry-After``, for ``patience`` seconds; a task that is submitted has a key, so that it is one task all the same.
    ``token`` is what the intake requires of those it lets in. ``tls`` is for an https URL whose certificate others than
    the usual authorities vouch for. ``on_wait`` is told, in words, why the client waits, before each pause.

    All methods raise ``UnansweredError`` when patience is at its end, and an ``IntakeError`` for what the intake
    answers: ``InvalidRequestError``, ``AccessError``, ``UnknownTaskError`` or ``TaskStateError``.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        patience: float = 60.0,
        tls: ssl.SSLContext | None = None,
        on_wait: Callable[[str], object] = lambda reason: None,
    ) -> None:
        self._address = Address(url, token)
        self._patience = Patience(str(self._address), patience, on_wait)
        self._http = httpx2.Client(**transport.options(self._address, tls))

    def __repr__(self) -> str:
        return f"Client({self._address!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def submit(
        self,
        pipeline: str,
        payload: Any,
        *,
        key: str | None = None,
        task_id: UUID | None = None,
        labels: Mapping[str, str] | None = None,
        not_before: Moment | None = None,
        deadline: Moment | None = None,
        priority: Urgency | None = None,
        traceparent: str | None = None,
    ) -> Submitted:
        """Submit a task; when this returns it is in Postgres.

        With a ``key`` or ``task_id`` of your own the same call may be made again, at any time and from anywhere, and is
        one task. Raises ``UnstorableError`` if the payload is no JSON, or none that Postgres keeps.
        """
        task = NewTask(payload, key, task_id, labels, not_before, deadline, priority)
        return self._talk(calls.submit(pipeline, task, self._patience, traceparent))

    def submit_many(
        self,
        pipeline: str,
        items: Iterable[Any],
        *,
        run: str | None = None,
        labels: Mapping[str, str] | None = None,
        not_before: Moment | None = None,
        deadline: Moment | None = None,
        priority: Urgency | None = None,
        batch: int = LINES,
    ) -> Iterator[Outcome]:
        """Submit payloads; yields for each, in their order, that it was ``Submitted`` or ``Refused``.

        An item is a payload; or a ``NewTask``, which has more; or ``bytes``, a line of NDJSON like those that
        ``postroad submit`` reads (blank ones are passed over). The keyword arguments are for those that have none of
        their own. Nothing is sent before the first answer is asked for, and no more is read than has room in the
        requests under way, and the next one: ``batch`` lines in each, or a mebibyte. An error is raised after all
        answers to the lines of its request that have come: what is known to be accepted is told.

        An item with neither key nor id is given a key of ``run`` and its number, so that with the same ``run`` the
        same items may be submitted again after an interruption.
        """
        defaults = NewTask(None, None, None, labels, not_before, deadline, priority).members()
        gatherer = Gatherer(pipeline, run or uuid.uuid4().hex, defaults, lines=batch)
        for item in items:
            if gatherer.add(item):
                yield from self._send(gatherer.take())
        yield from self._send(gatherer.take())

    def task(self, task_id: UUID | str) -> TaskView:
        """The task as it stands now."""
        return self._talk(calls.task(task_id, self._patience))

    def wait(self, task_id: UUID | str, *, timeout: float | None = None) -> TaskView:
        """Wait until the task is completed, failed or cancelled. Raises ``TimeoutError`` after ``timeout`` seconds."""
        return self._talk(calls.wait(task_id, timeout, self._patience))

    def follow(self, task_id: UUID | str) -> Iterator[TaskEvent]:
        """The events of the task's journey, each once, from the first on and as they come, until it has ended."""
        steps = follow(task_id, self._patience)
        stream = _Stream(self._http, self._address)
        reply: Reply = None
        try:
            while True:
                step = steps.send(reply)
                if isinstance(step, TaskEvent):
                    reply = None
                    yield step
                elif isinstance(step, Open):
                    reply = stream.open(step.request)
                elif isinstance(step, Read):
                    reply = stream.read()
                else:
                    reply = self._perform(step)
        except StopIteration:
            return
        finally:
            stream.close()

    def cancel(self, task_id: UUID | str, *, by: str | None = None, reason: str | None = None) -> bool:
        """Cancel a task that has not completed, in whose name and why; false if it was cancelled already."""
        return self._talk(calls.cancel(task_id, by, reason, self._patience))

    def retry(
        self, task_id: UUID | str, *, stage: str | None = None, by: str | None = None, reason: str | None = None
    ) -> list[str]:
        """Run the dead stages of a task again, or ``stage`` and every one after it; the names of those that will run.

        Not sent again once it may have arrived: then raises ``UnansweredError`` at once, with ``may_have_happened``.
        """
        return self._talk(calls.retry(task_id, stage, by, reason, self._patience))

    def _send(self, group: Group) -> Iterator[Outcome]:
        sent = self._talk(send(group, self._patience))
        yield from sent.outcomes
        if sent.error is not None:
            raise sent.error

    def _talk(self, steps: Conversation[T]) -> T:
        reply: Reply = None
        try:
            while True:
                reply = self._perform(steps.send(reply))
        except StopIteration as done:
            result: T = done.value
            return result

    def _perform(self, step: Step) -> Reply:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        assert isinstance(step, Request)
        try:
            response = self._http.request(step.method, self._address.url + step.path, **transport.arguments(step))
        except httpx2.RequestError as error:
            return transport.lost(error)
        return transport.answer(response, response.content)


class _Stream:
    """An answer that is read bit by bit."""

    def __init__(self, http: httpx2.Client, address: Address) -> None:
        self._http = http
        self._address = address
        self._response: httpx2.Response | None = None
        self._chunks: Iterator[bytes] = iter(())

    def open(self, request: Request) -> Answer | Lost:
        self.close()
        sent = self._http.build_request(
            request.method, self._address.url + request.path, **transport.arguments(request)
        )
        try:
            self._response = self._http.send(sent, stream=True)
            head = transport.answer(self._response, b"")
            if head.is_stream:
                self._chunks = self._response.iter_bytes()
                return head
            return transport.answer(self._response, self._response.read())
        except httpx2.RequestError as error:
            return transport.lost(error)

    def read(self) -> bytes | Lost:
        try:
            return next(self._chunks, b"")
        except httpx2.RequestError as error:
            return transport.lost(error)

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None
