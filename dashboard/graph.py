"""Where the nodes of a pipeline's picture stand: the way from the intake to the end, from left to right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

WIDTH, NARROW = 168, 96
"""Of the node of a stage, and of the others."""

HEIGHT, GAP, SPACE = 82, 30, 16
"""Of a node; between columns; between the nodes of a column."""

WAY = ("intake", "outbox", "relay")
"""What every task passes before its first stage."""

ENDS = ("completed", "dead")
"""Where it comes to."""


@dataclass(frozen=True, slots=True)
class Node:
    """A box, by its upper left corner. ``stage`` is the name of a stage; of the others ``kind`` says what they are."""

    kind: str
    stage: str
    x: float
    y: float
    width: float
    height: float = HEIGHT

    @property
    def way_in(self) -> tuple[float, float]:
        """Where lines to it end."""
        return self.x, self.y + self.height / 2

    @property
    def way_out(self) -> tuple[float, float]:
        """Where lines from it begin."""
        return self.x + self.width, self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class Drawing:
    """All of it: ``lines`` as the paths of SVG."""

    nodes: Sequence[Node]
    lines: Sequence[str]
    width: float
    height: float


def draw(after: Mapping[str, Sequence[str]]) -> Drawing:
    """The picture of a pipeline with these stages, each with those that it comes after, in the order of their runs."""
    columns = _columns(after)
    height = max([len(column) for column in columns] + [len(ENDS)]) * (HEIGHT + SPACE) - SPACE
    nodes: dict[str, Node] = {}
    x = 1.0
    for kind in WAY:
        nodes[f"/{kind}"] = Node(kind, "", x, (height - HEIGHT) / 2, NARROW)
        x += NARROW + GAP
    for column in columns:
        y = (height - len(column) * (HEIGHT + SPACE) + SPACE) / 2
        for place, stage in enumerate(column):
            nodes[stage] = Node("stage", stage, x, y + place * (HEIGHT + SPACE), WIDTH)
        x += WIDTH + GAP
    low = (HEIGHT - SPACE) / 2
    for place, kind in enumerate(ENDS):
        nodes[f"/{kind}"] = Node(kind, "", x, height / 2 - low - SPACE / 2 + place * (low + SPACE), NARROW, low)
    lines = [_line(nodes[f"/{one}"], nodes[f"/{other}"]) for one, other in pairwise(WAY)]
    for stage, before in after.items():
        lines += [_line(nodes[one], nodes[stage]) for one in before if one in nodes] or [
            _line(nodes["/relay"], nodes[stage])
        ]
    followed = {one for before in after.values() for one in before}
    for stage in after:
        if stage not in followed:
            lines.append(_line(nodes[stage], nodes["/completed"]))
    return Drawing(list(nodes.values()), lines, x + NARROW + 1, height + 2)


def _columns(after: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """The stages by how many come before them, those beside each other near what they come after."""
    depth: dict[str, int] = {}
    for stage, before in after.items():
        depth[stage] = 1 + max((depth.get(one, 0) for one in before), default=0)
    columns: list[list[str]] = [[] for _ in range(max(depth.values(), default=0))]
    for stage in after:
        columns[depth[stage] - 1].append(stage)
    place: dict[str, float] = {}
    for column in columns:
        column.sort(key=lambda stage: _mean([place[one] for one in after[stage] if one in place]))
        place |= {stage: (number + 0.5) / len(column) for number, stage in enumerate(column)}
    return columns


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.5


def _line(one: Node, other: Node) -> str:
    (x1, y1), (x2, y2) = one.way_out, other.way_in
    bend = max((x2 - x1) / 2, GAP / 2)
    return f"M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
