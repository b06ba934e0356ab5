"""The order in which faults strike."""

import random

import pytest

from tests.acceptance.havoc import Bag

KINDS = ("a", "b", "c", "d")


def drawn(seed: int, count: int) -> list[str]:
    bag = Bag(KINDS, random.Random(seed))
    return [bag.next() for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_comes_once_before_any_comes_again(seed: int) -> None:
    kinds = drawn(seed, 12)

    assert [sorted(kinds[start : start + 4]) for start in (0, 4, 8)] == [sorted(KINDS)] * 3


def test_the_order_is_the_seeds() -> None:
    assert drawn(1, 40) == drawn(1, 40)
    assert drawn(1, 40) != drawn(2, 40)


def test_one_that_is_picked_out_does_not_come_again_before_the_others() -> None:
    bag = Bag(KINDS, random.Random(1))
    first = bag.next()
    wanted = max({*KINDS} - {first})

    assert bag.next_if(lambda kind: kind == wanted) == wanted
    assert bag.next_if(lambda kind: kind == wanted) is None
    assert sorted([first, wanted, bag.next(), bag.next()]) == sorted(KINDS)
