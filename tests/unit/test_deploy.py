"""The rules for Prometheus and the dashboard for Grafana are ones that these can read."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus/alerts.yml"

LABELS = {"pipeline", "stage", "outcome", "reason", "state", "status", "invariant", "role", "version", "python", "le"}


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load(ALERTS.read_text("utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    board: dict[str, Any] = json.loads((DEPLOY / "grafana/postroad.json").read_text("utf-8"))
    return list(board["panels"])


def expressions() -> list[str]:
    return [rule["expr"] for rule in rules()] + [one["expr"] for panel in panels() for one in panel["targets"]]


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_is_whole(expression: str) -> None:
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing)
    assert expression.count('"') % 2 == 0
    for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
        assert {label.strip() for label in labels.split(",")} <= LABELS
    for counter in re.findall(r"(.{0,9})\bpostroad_\w+_total\b", expression):
        assert re.search(r"(rate|increase)\($", counter), "a counter alone says nothing"
    for gauge in re.findall(r"(?:rate|increase)\((postroad_\w+)", expression):
        assert re.search(r"_(total|bucket|count|sum)$", gauge), "a gauge has no rate"


def test_an_alert_says_what_it_means_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]

    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_no_panel_lies_over_another() -> None:
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels())
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in panels()}) == len(panels())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_accepts_the_rules() -> None:
    checked = subprocess.run(["promtool", "check", "rules", ALERTS], capture_output=True, text=True, timeout=30)

    assert checked.returncode == 0, checked.stdout + checked.stderr
