"""GroupCommit: many callers share one write.

Whatever is submitted while a write runs goes into the next one. A lone item does not wait for company: there is
no timer, the length of the last write is what gathers the next group.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Lot(Generic[Result]):
    """What was submitted together: one future for the results of all, each of which may be an error."""

    def __init__(self, size: int) -> None:
        self.future: asyncio.Future[list[Result | Exception]] = asyncio.get_running_loop().create_future()
        self._results: list[Any] = [None] * size
        self._missing = size

    def places(self) -> "Iterator[_Place[Result]]":
        return (_Place(self, number) for number in range(self._missing))

    def put(self, number: int, result: Result | Exception) -> None:
        self._results[number] = result
        self._missing -= 1
        if not self._missing and not self.future.done():
            self.future.set_result(self._results)


class _Place(Generic[Result]):
    """The place of one item in its lot, in the stead of a future of its own: a thousand of those take their time."""

    __slots__ = ("_lot", "_number")

    def __init__(self, lot: _Lot[Result], number: int) -> None:
        self._lot = lot
        self._number = number

    def done(self) -> bool:
        return self._lot.future.done()

    def set_result(self, result: Result) -> None:
        self._lot.put(self._number, result)

    def set_exception(self, error: Exception) -> None:
        self._lot.put(self._number, error)

    def cancel(self) -> bool:
        return self._lot.future.cancel()


class GroupCommit(Generic[Item, Result]):
    """Collects items and hands them to ``write`` in groups of at most ``limit``, one group at a time.

    ``write`` takes the items of a group and returns a result for each, in order; it commits all of them or, by
    raising, none. If it raises an error that ``is_transient`` does not know, the group is split in halves until the
    item at fault stands alone, so that one bad item does not spoil the others; its caller gets the error. A
    transient error, after which nobody can say what happened, goes to every caller of the group.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        limit: int = 1000,
        is_transient: Callable[[BaseException], bool] = lambda error: True,
    ) -> None:
        self._write = write
        self._limit = limit
        self._is_transient = is_transient
        self._waiting: list[tuple[Item, asyncio.Future[Result] | _Place[Result]]] = []
        self._running: asyncio.Task[None] | None = None

    def submit(self, item: Item) -> "asyncio.Future[Result]":
        """Put ``item`` into the next group; the future brings its result, or the error of its write."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._start()
        return future

    def submit_all(self, items: Sequence[Item]) -> "asyncio.Future[list[Result | Exception]]":
        """Put ``items`` into the next groups; the future brings the result of each, or the error of its write."""
        lot = _Lot[Result](len(items))
        if items:
            self._waiting.extend(zip(items, lot.places(), strict=True))
            self._start()
        else:
            lot.future.set_result([])
        return lot.future

    async def drain(self) -> None:
        """Wait until everything that was submitted has been written or has failed."""
        while self._running is not None:
            await asyncio.shield(self._running)

    async def cancel(self, *, within: float) -> None:
        """End the write that runs, and cancel all who wait; wait at most ``within`` seconds for it to end.

        Before the connections that it writes over are closed: one that comes back later is closed by nobody.
        """
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running], timeout=within)

    def _start(self) -> None:
        if self._running is None:
            self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        group: list[tuple[Item, asyncio.Future[Result] | _Place[Result]]] = []
        try:
            while self._waiting:
                group, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
                await self._commit(group)
        finally:
            self._running = None
            # If this task was cancelled, nobody else will answer those who wait.
            for _, future in (*group, *self._waiting):
                future.cancel()
            self._waiting = []

    async def _commit(self, group: "list[tuple[Item, asyncio.Future[Result] | _Place[Result]]]") -> None:
        try:
            results = await self._write([item for item, _ in group])
        except Exception as error:
            if len(group) > 1 and not self._is_transient(error):
                middle = len(group) // 2
                await self._commit(group[:middle])
                await self._commit(group[middle:])
                return
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(group, results, strict=True):
            if not future.done():
                future.set_result(result)
