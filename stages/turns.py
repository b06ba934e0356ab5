"""Whose turn it is, of lanes that share the slots of a worker by weight."""

from collections.abc import Mapping

from ..core.priority import Priority

WEIGHTS = {Priority.HIGH: 8, Priority.NORMAL: 3, Priority.LOW: 1}
"""Of so many entries that a worker takes while all lanes have some, so many are of each."""

_COST = {lane: 24 // weight for lane, weight in WEIGHTS.items()}
"""What an entry costs its lane, in whole numbers: the more, the less its lane weighs."""


class Turns:
    """Fair queueing by weight: the next entry is of the lane that would then have spent least, the most urgent first.

    It holds over time, so also for a worker that takes one entry at a time. A lane that has nothing saves nothing up:
    what the others take of its share is not owed to it.
    """

    def __init__(self) -> None:
        self._spent = dict.fromkeys(WEIGHTS, 0)

    def shares(self, slots: int) -> dict[Priority, int]:
        """How many of ``slots`` entries are to be of each lane, should it have so many; together as many."""
        shares = dict.fromkeys(WEIGHTS, 0)
        spent = dict(self._spent)
        for _ in range(slots):
            lane = min(spent, key=lambda lane: spent[lane] + _COST[lane])
            spent[lane] += _COST[lane]
            shares[lane] += 1
        return shares

    def took(self, counts: Mapping[Priority, int], shares: Mapping[Priority, int]) -> None:
        """Heed that so many of each lane were there to be taken, of the ``shares`` and of what those left over."""
        for lane, count in counts.items():
            self._spent[lane] += count * _COST[lane]
        empty = [lane for lane, share in shares.items() if counts.get(lane, 0) < share]
        busy = [self._spent[lane] for lane in WEIGHTS if counts.get(lane, 0) and lane not in empty]
        if not busy:
            self._spent = dict.fromkeys(WEIGHTS, 0)
            return
        for lane in empty:
            self._spent[lane] = max(self._spent[lane], min(busy))
        least = min(self._spent.values())
        self._spent = {lane: spent - least for lane, spent in self._spent.items()}
