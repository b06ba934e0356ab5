"""What is counted, under which labels, and that gauges show what was found last."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from postroad.cli.telemetry import WithDistributions
from postroad.core import metrics
from postroad.core.metrics import BUCKETS, Counts, Distributions, Levels


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    """What is read of a meter provider, as if an author had configured one."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    monkeypatch.setattr(api, "get_meter", provider.get_meter)
    monkeypatch.setattr(metrics, "COUNTS", Counts())
    monkeypatch.setattr(metrics, "DISTRIBUTIONS", Distributions())
    metrics._histogram.cache_clear()
    yield reader
    metrics._histogram.cache_clear()
    provider.shutdown()


def points(reader: InMemoryMetricReader) -> dict[str, dict[tuple[str, ...], Any]]:
    """The values by the name of the metric and its labels; of a histogram how many there were."""
    data = reader.get_metrics_data()
    document = json.loads(data.to_json()) if data else {"resource_metrics": []}
    return {
        metric["name"]: {
            tuple(point["attributes"].values()): point.get("value", point.get("count"))
            for point in metric["data"]["data_points"]
        }
        for of_resource in document["resource_metrics"]
        for of_scope in of_resource["scope_metrics"]
        for metric in of_scope["metrics"]
    }


def test_what_was_healed_is_counted_by_its_reason(reader: InMemoryMetricReader) -> None:
    metrics.healed(3, "lost entry", pipeline="travel", stage="ride")
    metrics.healed(2, "lost entry", pipeline="travel", stage="ride")
    metrics.healed(1, "no marker")
    metrics.healed(0, "dead worker")

    assert points(reader) == {"postroad.healed": {("lost entry", "travel", "ride"): 5, ("no marker",): 1}}


def test_what_is_refused_is_counted_by_the_kind_of_the_problem(reader: InMemoryMetricReader) -> None:
    metrics.rejected("invalid")
    metrics.rejected("https://iana.org/assignments/http-problem-types#quota-exceeded")

    assert points(reader) == {"postroad.intake.rejected": {("invalid",): 1, ("quota-exceeded",): 1}}


def test_a_stage_is_counted_from_0_on(reader: InMemoryMetricReader) -> None:
    metrics.announce_stage("travel", "ride")
    metrics.attempted("travel", "ride", "done", 0.1)

    counted = points(reader)
    assert counted["postroad.stage.attempts"] == {
        ("travel", "ride", outcome): int(outcome == "done") for outcome in metrics.OUTCOMES
    }
    assert counted["postroad.leases.lost"] == {("travel", "ride"): 0}


def test_clocks_that_differ_make_no_negative_durations(reader: InMemoryMetricReader) -> None:
    metrics.waited("travel", "ride", -1)
    metrics.ended("travel", "completed", -1)

    data = reader.get_metrics_data()
    assert data is not None
    assert '"min": 0.0' in data.to_json()
    assert '"min": -' not in data.to_json()


def test_gauges_show_what_was_found_last_and_nothing_once_it_is_not_known(reader: InMemoryMetricReader) -> None:
    levels = Levels()

    levels.show({"postroad.outbox.unpublished": [(3, {})], "postroad.relay.leading": [(1, {})]})
    levels.show({"postroad.outbox.unpublished": [(2, {})]})
    assert points(reader) == {"postroad.outbox.unpublished": {(): 2}, "postroad.relay.leading": {(): 1}}

    levels.clear("postroad.outbox.unpublished")
    assert "postroad.outbox.unpublished" not in points(reader)
    levels.clear()
    assert points(reader) == {}


class Whole(WithDistributions, InMemoryMetricReader):
    """What a collector of ours is told."""


def test_what_we_add_up_ourselves_is_told_as_opentelemetry_would_have(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(reader: InMemoryMetricReader, *, is_ours: bool) -> Any:
        provider = MeterProvider(metric_readers=[reader])
        monkeypatch.setattr(api, "get_meter", provider.get_meter)
        monkeypatch.setattr(metrics, "COUNTS", Counts())
        monkeypatch.setattr(metrics, "DISTRIBUTIONS", Distributions())
        metrics._histogram.cache_clear()
        if is_ours:
            metrics.DISTRIBUTIONS.add_up()
        for seconds in (0.0, 0.005, 0.0051, 7.5, BUCKETS[-1], BUCKETS[-1] + 1, 0.3):
            metrics.attempted("travel", "ride", "done", seconds)
        metrics.attempted("travel", "rest", "done", 1)
        metrics.ended("travel", "completed", 2)
        data = reader.get_metrics_data()
        assert data is not None
        document = json.loads(data.to_json())
        metrics._histogram.cache_clear()
        provider.shutdown()
        found = document["resource_metrics"][0]["scope_metrics"][0]["metrics"]
        for metric in found:
            for point in metric["data"]["data_points"]:
                del point["start_time_unix_nano"], point["time_unix_nano"]
        return sorted(found, key=lambda metric: metric["name"])

    ours = told(Whole(), is_ours=True)

    assert ours == told(InMemoryMetricReader(), is_ours=False)
    assert [metric["name"] for metric in ours] == [
        "postroad.stage.attempts", "postroad.stage.duration", "postroad.task.latency",
    ]  # fmt: skip
