"""The drawings of the dashboard, and how it writes numbers."""

import re
from datetime import UTC, datetime, timedelta
from itertools import combinations

import pytest
from starlette.requests import Request

from postroad.dashboard.graph import GAP, HEIGHT, Node, draw
from postroad.dashboard.render import address, ago, asset, number, span
from postroad.dashboard.session import _is_same_origin
from postroad.dashboard.sparkline import HEIGHT as SPARK
from postroad.dashboard.sparkline import sparkline

TRAVEL = {"pack": [], "ride": ["pack"], "rest": ["pack"], "arrive": ["ride", "rest"]}


def by_name(after: dict[str, list[str]]) -> dict[str, Node]:
    return {node.stage or node.kind: node for node in draw(after).nodes}


# The graph


def test_a_stage_stands_to_the_right_of_those_that_it_comes_after() -> None:
    nodes = by_name(TRAVEL)

    for stage, before in TRAVEL.items():
        for one in before or ["relay"]:
            assert nodes[one].x + nodes[one].width + GAP <= nodes[stage].x
    assert nodes["ride"].x == nodes["rest"].x


def test_no_two_nodes_overlap_and_all_are_within_the_drawing() -> None:
    wide = {"first": [], **{f"one-{number}": ["first"] for number in range(7)}, "last": ["one-1", "one-5"]}
    drawing = draw(wide)

    for one, other in combinations(drawing.nodes, 2):
        is_beside = one.x + one.width <= other.x or other.x + other.width <= one.x
        assert is_beside or one.y + one.height <= other.y or other.y + other.height <= one.y
    for node in drawing.nodes:
        assert 0 <= node.x <= node.x + node.width <= drawing.width
        assert 0 <= node.y <= node.y + node.height <= drawing.height


def test_lines_lead_from_each_stage_to_the_next_and_from_the_last_to_the_end() -> None:
    drawing, nodes = draw(TRAVEL), by_name(TRAVEL)
    ends = {(nodes[stage].way_in, name) for name, stage in (("end", "completed"), ("arrive", "arrive"))}

    assert len(drawing.lines) == 2 + 1 + 4 + 1
    for (x, y), name in ends:
        count = sum(line.endswith(f" {x:g} {y:g}") for line in drawing.lines)
        assert count == (2 if name == "arrive" else 1)


def test_a_pipeline_of_one_stage_is_drawn_too() -> None:
    assert by_name({"only": []})["only"].height == HEIGHT


# The sparkline


def test_the_highest_minute_fills_the_height_and_failures_stand_on_top() -> None:
    line = sparkline({0: 6, 5: 1}, {0: 2}, known=60)

    good, bad = (bar for bar in line.bars if bar.x == max(one.x for one in line.bars))
    assert (line.most, good.kind, bad.kind) == (8, "good", "bad")
    assert good.height + bad.height == SPARK
    assert bad.y + bad.height == good.y


def test_minutes_that_were_not_looked_at_are_marked() -> None:
    (bar,) = sparkline({}, {}, known=15).bars

    assert (bar.kind, bar.width) == ("unknown", 135)


# Numbers and addresses


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (None, "–"), (0, "0 ms"), (0.0004, "0.4 ms"), (0.04, "40 ms"), (3.21, "3.2 s"), (59.4, "59 s"), (600, "10 min"),
        (14400, "4 h"), (864000, "10 d"), (-5, "0 ms"),
    ],
)  # fmt: skip
def test_times_are_told_as_people_say_them(seconds: float | None, told: str) -> None:
    assert span(seconds) == told


@pytest.mark.parametrize(("value", "told"), [(None, "–"), (0, "0"), (0.25, "0.25"), (3.25, "3.2"), (12345.6, "12,346")])
def test_numbers_have_their_thousands_apart(value: float | None, told: str) -> None:
    assert number(value) == told


def test_moments_ahead_are_told_too() -> None:
    assert re.fullmatch(r"in \d+ (s|min)", ago(datetime.now(UTC) + timedelta(minutes=2)))


def test_an_address_escapes_what_it_is_given() -> None:
    assert address("/ui/tasks", q="a&b=<c>", stage=None, label=["x:1", "y:2"]) == (
        "/ui/tasks?q=a%26b%3D%3Cc%3E&label=x%3A1&label=y%3A2"
    )


def test_only_files_of_the_folder_are_served() -> None:
    assert asset("ui.css")[1] == "text/css"
    for name in ("../app.py", "none.css", "", ".", "ui.css/../ui.js"):
        with pytest.raises(KeyError):
            asset(name)


def test_our_scripts_ask_for_nothing_that_the_policy_forbids() -> None:
    assert not re.search(rb"\beval\(|innerHTML|\.style\b", asset("ui.js")[0])
    assert b"@import" not in asset("ui.css")[0]
    assert b"url(" not in asset("ui.css")[0]


# Where a form came from


@pytest.mark.parametrize(
    ("headers", "is_ours"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "null"}, True),
        ({"sec-fetch-site": "cross-site", "origin": "http://door:8080"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"origin": "http://door:8080"}, True),
        ({"origin": "http://door:9090"}, False),
        ({"origin": "http://door:8080.evil.example"}, False),
        ({"origin": "null"}, False),
        ({}, False),
    ],
)
def test_a_form_is_ours_if_the_browser_says_so(headers: dict[str, str], is_ours: bool) -> None:
    raw = [(name.encode(), value.encode()) for name, value in ({"host": "door:8080"} | headers).items()]

    assert _is_same_origin(Request({"type": "http", "headers": raw})) is is_ours
