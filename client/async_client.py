"""The client for asyncio: the same calls, and several requests of ``submit_many`` at once."""

import asyncio
import ssl
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

import httpx2

from . import calls, transport
from .address import Address
from .batch import LINES, Gatherer, Group, Outcome, Sent, send
from .exchange import Answer, Conversation, Lost, Open, Pause, Read, Reply, Request, Step
from .journey import follow
from .new_task import Moment, NewTask, Urgency
from .patience import Patience
from .views import Submitted, TaskEvent, TaskView

T = TypeVar("T")

REQUESTS = 4
"""Requests of one ``submit_many`` under way at once: while one is being committed the next are on their way."""


class AsyncClient:
    """``Client`` for asyncio; its methods are the same and are awaited, or iterated with ``async for``."""

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
        self._http = httpx2.AsyncClient(**transport.options(self._address, tls))

    def __repr__(self) -> str:
        return f"AsyncClient({self._address!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def submit(
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
        """As ``Client.submit``."""
        task = NewTask(payload, key, task_id, labels, not_before, deadline, priority)
        return await self._talk(calls.submit(pipeline, task, self._patience, traceparent))

    async def submit_many(
        self,
        pipeline: str,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        run: str | None = None,
        labels: Mapping[str, str] | None = None,
        not_before: Moment | None = None,
        deadline: Moment | None = None,
        priority: Urgency | None = None,
        batch: int = LINES,
    ) -> AsyncGenerator[Outcome, None]:
        """As ``Client.submit_many``, with a few requests under way at once; the answers are in order all the same.

        End it early with ``contextlib.aclosing``, so that what is under way ends with it.
        """
        defaults = NewTask(None, None, None, labels, not_before, deadline, priority).members()
        gatherer = Gatherer(pipeline, run or uuid.uuid4().hex, defaults, lines=batch)
        # A place is free again when the answers of its request have been taken, not when they have come. The next lines
        # are gathered before: answers tend to come together, since requests share commits, and then nobody would work.
        places = asyncio.Semaphore(REQUESTS)
        sending: asyncio.Queue[asyncio.Task[Sent] | None] = asyncio.Queue()
        requests: set[asyncio.Task[Sent]] = set()

        async def begin(group: Group) -> None:
            await places.acquire()
            request = asyncio.create_task(self._talk(send(group, self._patience)))
            requests.add(request)
            sending.put_nowait(request)

        async def gather() -> None:
            try:
                async with aclosing(_each(items)) as each:
                    async for item in each:
                        if gatherer.add(item):
                            await begin(gatherer.take())
                await begin(gatherer.take())
            finally:
                sending.put_nowait(None)

        gathering = asyncio.create_task(gather())
        try:
            while (request := await sending.get()) is not None:
                sent = await request
                for outcome in sent.outcomes:
                    yield outcome
                if sent.error is not None:
                    raise sent.error
                requests.discard(request)
                places.release()
            await gathering  # raises what the items have raised
        finally:
            for task in (gathering, *requests):
                task.cancel()
            await asyncio.gather(gathering, *requests, return_exceptions=True)

    async def task(self, task_id: UUID | str) -> TaskView:
        """As ``Client.task``."""
        return await self._talk(calls.task(task_id, self._patience))

    async def wait(self, task_id: UUID | str, *, timeout: float | None = None) -> TaskView:
        """As ``Client.wait``."""
        return await self._talk(calls.wait(task_id, timeout, self._patience))

    async def follow(self, task_id: UUID | str) -> AsyncGenerator[TaskEvent, None]:
        """As ``Client.follow``. End it early with ``contextlib.aclosing``, so that its connection is free again."""
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
                    reply = await stream.open(step.request)
                elif isinstance(step, Read):
                    reply = await stream.read()
                else:
                    reply = await self._perform(step)
        except StopIteration:
            return
        finally:
            await stream.close()

    async def cancel(self, task_id: UUID | str, *, by: str | None = None, reason: str | None = None) -> bool:
        """As ``Client.cancel``."""
        return await self._talk(calls.cancel(task_id, by, reason, self._patience))

    async def retry(
        self, task_id: UUID | str, *, stage: str | None = None, by: str | None = None, reason: str | None = None
    ) -> list[str]:
        """As ``Client.retry``."""
        return await self._talk(calls.retry(task_id, stage, by, reason, self._patience))

    async def _talk(self, steps: Conversation[T]) -> T:
        reply: Reply = None
        try:
            while True:
                reply = await self._perform(steps.send(reply))
        except StopIteration as done:
            result: T = done.value
            return result

    async def _perform(self, step: Step) -> Reply:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        assert isinstance(step, Request)
        try:
            response = await self._http.request(step.method, self._address.url + step.path, **transport.arguments(step))
        except httpx2.RequestError as error:
            return transport.lost(error)
        return transport.answer(response, response.content)


class _Stream:
    """An answer that is read bit by bit."""

    def __init__(self, http: httpx2.AsyncClient, address: Address) -> None:
        self._http = http
        self._address = address
        self._response: httpx2.Response | None = None
        self._chunks: AsyncIterator[bytes] = aiter(_each(()))

    async def open(self, request: Request) -> Answer | Lost:
        await self.close()
        sent = self._http.build_request(
            request.method, self._address.url + request.path, **transport.arguments(request)
        )
        try:
            self._response = await self._http.send(sent, stream=True)
            head = transport.answer(self._response, b"")
            if head.is_stream:
                self._chunks = self._response.aiter_bytes()
                return head
            return transport.answer(self._response, await self._response.aread())
        except httpx2.RequestError as error:
            return transport.lost(error)

    async def read(self) -> bytes | Lost:
        try:
            return await anext(self._chunks, b"")
        except httpx2.RequestError as error:
            return transport.lost(error)

    async def close(self) -> None:
        if self._response is not None:
            await self._response.aclose()
            self._response = None


async def _each(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[Any, None]:
    """The items, one by one."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
