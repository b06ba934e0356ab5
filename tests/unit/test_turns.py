"""Sharing slots among lanes by weight: over time, and with nothing saved up."""

import random
from collections import Counter

import pytest

from postroad.core.priority import Priority
from postroad.stages.turns import WEIGHTS, Turns

HIGH, NORMAL, LOW = Priority


def take(turns: Turns, slots: int, backlog: dict[Priority, int]) -> Counter[Priority]:
    """One read, as the script does it: of each lane its share, then of the others what that left over."""
    shares = turns.shares(slots)
    assert sum(shares.values()) == slots
    taken = Counter({lane: min(share, backlog[lane]) for lane, share in shares.items()})
    for lane in shares:
        if taken[lane] == shares[lane]:
            taken[lane] += min(slots - taken.total(), backlog[lane] - taken[lane])
    for lane, count in taken.items():
        backlog[lane] -= count
    turns.took(taken, shares)
    return taken


@pytest.mark.parametrize("slots", [1, 2, 3, 7, 12, 40, 100])
def test_while_all_have_a_backlog_each_has_its_weight_over_time(slots: int) -> None:
    turns = Turns()
    backlog = dict.fromkeys(WEIGHTS, 100_000)
    taken: Counter[Priority] = Counter()
    for _ in range(200):
        taken += take(turns, slots, backlog)
        for lane, weight in WEIGHTS.items():
            assert abs(taken[lane] - taken.total() * weight / 12) <= 2


def test_one_slot_goes_round_with_the_most_urgent_first() -> None:
    turns, backlog = Turns(), dict.fromkeys(WEIGHTS, 100)

    order = [next(iter(+take(turns, 1, backlog))) for _ in range(12)]

    assert order[:3] == [HIGH, HIGH, NORMAL]
    assert Counter(order) == WEIGHTS
    assert order[11] is LOW


@pytest.mark.parametrize("slots", [1, 5, 50])
def test_what_a_lane_has_no_use_for_is_used_by_the_others(slots: int) -> None:
    turns = Turns()

    assert take(turns, slots, {HIGH: 0, NORMAL: 0, LOW: 100}) == {HIGH: 0, NORMAL: 0, LOW: slots}
    taken = sum((take(turns, slots, {HIGH: 1000, NORMAL: 0, LOW: 1000}) for _ in range(180)), Counter())
    assert taken[NORMAL] == 0
    assert taken.total() == 180 * slots
    assert abs(taken[LOW] - taken.total() / 9) <= slots


@pytest.mark.parametrize("late", Priority)
def test_a_lane_that_was_empty_for_long_is_owed_nothing(late: Priority) -> None:
    turns = Turns()
    backlog = dict.fromkeys(WEIGHTS, 100_000) | {late: 0}
    for _ in range(5000):
        take(turns, 1, backlog)

    backlog[late] = 1000
    taken = sum((take(turns, 1, backlog) for _ in range(120)), Counter())

    for lane, weight in WEIGHTS.items():
        assert abs(taken[lane] - 10 * weight) <= 2


def test_a_trickle_of_low_ones_is_served_beside_a_flood() -> None:
    turns = Turns()
    backlog = {HIGH: 100_000, NORMAL: 100_000, LOW: 0}
    chance = random.Random(7)
    for _ in range(200):
        backlog[LOW] = 1
        waited = 0
        while backlog[LOW]:
            waited += take(turns, chance.randint(1, 5), backlog).total()
        assert waited <= 12 + 5
