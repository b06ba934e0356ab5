"""GroupCommit: who shares a write with whom, and who gets which error."""

import asyncio
from collections.abc import Sequence

import pytest

from postroad.core.batching import GroupCommit


class Writer:
    """Writes down the groups it is given; waits for ``gate``; items named ``poison`` cannot be written."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.running = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def __call__(self, items: Sequence[str]) -> Sequence[str]:
        self.groups.append(list(items))
        self.running += 1
        assert self.running == 1, "one group at a time"
        try:
            await self.gate.wait()
            if self.error is not None:
                raise self.error
            if poison := [item for item in items if item.startswith("poison")]:
                raise ValueError(f"cannot write {', '.join(poison)}")
            return [f"{item} written" for item in items]
        finally:
            self.running -= 1


@pytest.fixture
async def writer() -> Writer:
    return Writer()


def is_transient(error: BaseException) -> bool:
    return isinstance(error, ConnectionError)


async def test_a_lone_item_is_written_at_once(writer: Writer) -> None:
    group = GroupCommit(writer)
    future = group.submit("a")

    # Two turns of the loop, no timer: the first starts the writer, the second runs it through.
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert future.done()
    assert await future == "a written"
    assert writer.groups == [["a"]]


async def test_what_comes_while_a_write_runs_shares_the_next_one(writer: Writer) -> None:
    group = GroupCommit(writer)
    writer.gate.clear()
    first = group.submit("a")
    await asyncio.sleep(0)
    others = [group.submit(item) for item in "bcd"]
    await asyncio.sleep(0)
    assert writer.groups == [["a"]]

    writer.gate.set()

    assert await asyncio.gather(first, *others) == ["a written", "b written", "c written", "d written"]
    assert writer.groups == [["a"], ["b", "c", "d"]]


async def test_what_is_submitted_at_once_shares_one_write(writer: Writer) -> None:
    group = GroupCommit(writer)

    results = await asyncio.gather(*(group.submit(str(number)) for number in range(100)))

    assert results == [f"{number} written" for number in range(100)]
    assert len(writer.groups) == 1


async def test_a_group_has_a_limit(writer: Writer) -> None:
    group = GroupCommit(writer, limit=3)

    await asyncio.gather(*(group.submit(item) for item in "abcdefgh"))

    assert writer.groups == [["a", "b", "c"], ["d", "e", "f"], ["g", "h"]]


async def test_the_next_write_begins_again_after_a_rest(writer: Writer) -> None:
    group = GroupCommit(writer)
    await group.submit("a")
    await group.drain()

    assert await group.submit("b") == "b written"
    assert writer.groups == [["a"], ["b"]]


async def test_one_bad_item_does_not_spoil_the_others(writer: Writer) -> None:
    group = GroupCommit(writer, is_transient=is_transient)
    futures = {item: group.submit(item) for item in ("a", "b", "c", "poison", "d", "e", "f")}

    results = dict(zip(futures, await asyncio.gather(*futures.values(), return_exceptions=True), strict=True))

    error = results.pop("poison")
    assert isinstance(error, ValueError)
    assert str(error) == "cannot write poison"
    assert results == {item: f"{item} written" for item in "abcdef"}
    assert len(writer.groups) <= 1 + 2 * 3, "halves, not one by one"


async def test_each_of_several_bad_items_gets_its_own_error(writer: Writer) -> None:
    group = GroupCommit(writer, is_transient=is_transient)

    results = await asyncio.gather(*map(group.submit, ("poison 1", "a", "poison 2")), return_exceptions=True)

    assert [str(result) for result in results] == ["cannot write poison 1", "a written", "cannot write poison 2"]


async def test_an_error_that_passes_by_itself_goes_to_all_of_the_group_and_is_not_tried_again(writer: Writer) -> None:
    group = GroupCommit(writer, is_transient=is_transient)
    writer.error = ConnectionResetError("the server went away")

    results = await asyncio.gather(*map(group.submit, "abc"), return_exceptions=True)

    assert results == [writer.error] * 3
    assert writer.groups == [["a", "b", "c"]]


async def test_without_a_rule_every_error_goes_to_all(writer: Writer) -> None:
    group = GroupCommit(writer)

    results = await asyncio.gather(*map(group.submit, ("a", "poison")), return_exceptions=True)

    assert [str(result) for result in results] == ["cannot write poison"] * 2
    assert len(writer.groups) == 1


async def test_after_an_error_the_next_group_is_written(writer: Writer) -> None:
    group = GroupCommit(writer, is_transient=is_transient)
    writer.error = ConnectionResetError()
    with pytest.raises(ConnectionResetError):
        await group.submit("a")

    writer.error = None

    assert await group.submit("b") == "b written"


async def test_a_caller_that_is_cancelled_takes_nobody_along(writer: Writer) -> None:
    group = GroupCommit(writer)
    writer.gate.clear()

    async def submit(item: str) -> str:
        return await group.submit(item)

    callers = [asyncio.create_task(submit(item)) for item in "ab"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert writer.groups == [["a", "b"]]

    callers[0].cancel()
    await asyncio.sleep(0)
    writer.gate.set()

    assert await callers[1] == "b written"
    assert callers[0].cancelled()


async def test_an_error_reaches_those_who_still_wait(writer: Writer) -> None:
    group = GroupCommit(writer)
    writer.gate.clear()
    writer.error = ConnectionResetError()
    futures = [group.submit(item) for item in "ab"]
    await asyncio.sleep(0)

    futures[0].cancel()
    writer.gate.set()

    with pytest.raises(ConnectionResetError):
        await futures[1]


async def test_if_the_writing_itself_is_cancelled_nobody_waits_for_ever(writer: Writer) -> None:
    group = GroupCommit(writer, limit=2, is_transient=is_transient)
    writer.gate.clear()
    futures = [group.submit(item) for item in "abcde"]
    await asyncio.sleep(0)

    running = group._running
    assert running is not None
    running.cancel()

    done, waiting = await asyncio.wait(futures, timeout=10)
    assert not waiting
    assert all(future.cancelled() for future in done)


async def test_if_the_writing_is_cancelled_while_it_seeks_a_bad_item_nobody_waits_for_ever(writer: Writer) -> None:
    is_split = asyncio.Event()

    async def write(items: Sequence[str]) -> Sequence[str]:
        if len(items) == 4:
            raise ValueError
        is_split.set()
        await writer.gate.wait()
        return items

    group = GroupCommit(write, is_transient=is_transient)
    writer.gate.clear()
    futures = [group.submit(item) for item in "abcd"]
    await is_split.wait()

    running = group._running
    assert running is not None
    running.cancel()

    _, waiting = await asyncio.wait(futures, timeout=10)
    assert not waiting


async def test_a_group_goes_on_after_its_writing_was_cancelled(writer: Writer) -> None:
    group = GroupCommit(writer)
    writer.gate.clear()
    lost = group.submit("a")
    await asyncio.sleep(0)
    assert group._running is not None
    group._running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lost

    writer.gate.set()

    assert await group.submit("b") == "b written"


async def test_drain_waits_for_everything_that_was_submitted(writer: Writer) -> None:
    group = GroupCommit(writer, limit=1)
    writer.gate.clear()
    futures = [group.submit(item) for item in "abc"]
    draining = asyncio.create_task(group.drain())
    await asyncio.sleep(0)
    assert not draining.done()

    writer.gate.set()
    await draining

    assert all(future.done() for future in futures)
    assert [await future for future in futures] == ["a written", "b written", "c written"]


async def test_drain_of_nothing_is_done(writer: Writer) -> None:
    await GroupCommit(writer).drain()


async def test_a_drain_that_is_cancelled_stops_no_writing(writer: Writer) -> None:
    group = GroupCommit(writer)
    writer.gate.clear()
    future = group.submit("a")
    draining = asyncio.create_task(group.drain())
    await asyncio.sleep(0)

    draining.cancel()
    await asyncio.sleep(0)
    writer.gate.set()

    assert await future == "a written"


# Many items at once


async def test_what_is_submitted_together_has_one_future_with_the_results_in_order(writer: Writer) -> None:
    group = GroupCommit(writer)

    assert await group.submit_all(["a", "b", "c"]) == ["a written", "b written", "c written"]
    assert writer.groups == [["a", "b", "c"]]
    assert await group.submit_all([]) == []
    assert len(writer.groups) == 1


async def test_what_is_submitted_together_shares_writes_with_others_and_is_cut_at_the_limit(writer: Writer) -> None:
    group = GroupCommit(writer, limit=3)

    one, many = group.submit("a"), [group.submit_all(["b", "c", "d"]), group.submit_all(["e"])]

    assert await one == "a written"
    assert await asyncio.gather(*many) == [["b written", "c written", "d written"], ["e written"]]
    assert writer.groups == [["a", "b", "c"], ["d", "e"]]


async def test_of_what_is_submitted_together_each_has_its_own_error(writer: Writer) -> None:
    group = GroupCommit(writer, is_transient=is_transient)

    first, error, last = await group.submit_all(["a", "poison", "b"])

    assert (first, last) == ("a written", "b written")
    assert isinstance(error, ValueError)


async def test_an_error_that_passes_by_itself_is_that_of_those_in_the_write(writer: Writer) -> None:
    group = GroupCommit(writer, limit=2, is_transient=is_transient)
    writer.gate.clear()
    results = group.submit_all(["a", "b", "c"])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    writer.error = ConnectionResetError()

    writer.gate.set()

    assert await results == [writer.error] * 3
    assert writer.groups == [["a", "b"], ["c"]]


async def test_whoever_has_submitted_together_and_goes_takes_nobody_along(writer: Writer) -> None:
    group = GroupCommit(writer)
    writer.gate.clear()
    gone, other = group.submit_all(["a", "b"]), group.submit("c")
    await asyncio.sleep(0)
    gone.cancel()

    writer.gate.set()

    assert await other == "c written"


async def test_if_the_writing_is_cancelled_those_who_submitted_together_are_told(writer: Writer) -> None:
    group = GroupCommit(writer, limit=2)
    writer.gate.clear()
    results = group.submit_all(["a", "b", "c"])
    await asyncio.sleep(0)

    await group.cancel(within=10)

    assert results.cancelled()
