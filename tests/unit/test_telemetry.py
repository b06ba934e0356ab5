"""Traces that go on from stage to stage, with an SDK or without."""

import json
from collections.abc import Iterator

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from postroad.core import telemetry
from postroad.core.telemetry import continued, span, trace_id

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Where spans go, as if an author had configured an SDK."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def test_a_valid_traceparent_is_continued() -> None:
    assert continued(TRACEPARENT) == TRACEPARENT
    assert trace_id(continued(TRACEPARENT)) == TRACE


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        "",
        "nonsense",
        TRACEPARENT.upper(),
        TRACEPARENT + "-more",
        TRACEPARENT + "\n",
        " " + TRACEPARENT,
        TRACEPARENT.replace("00-", "01-", 1),
        TRACEPARENT.replace("00-", "ff-", 1),
        TRACEPARENT.replace(TRACE, "0" * 32),
        TRACEPARENT.replace("00f067aa0ba902b7", "0" * 16),
        TRACEPARENT.replace(TRACE, TRACE[:-1]),
        TRACEPARENT.replace("4b", "4g"),
    ],
)
def test_anything_else_begins_a_new_trace(traceparent: str | None) -> None:
    begun = continued(traceparent)

    assert continued(begun) == begun, "it is a valid one"
    assert trace_id(begun) not in (traceparent or "")
    assert continued(traceparent) != begun, "and another each time"


def test_a_new_trace_asks_nobody_to_record_it() -> None:
    assert continued(None).endswith("-00")


def test_without_an_sdk_a_span_hands_on_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)

    with span("process allocate", SpanKind.CONSUMER, TRACEPARENT, {}) as inner:
        assert inner == TRACEPARENT


def test_a_span_continues_the_trace_and_yields_what_comes_after_it(exporter: InMemorySpanExporter) -> None:
    with span("process allocate", SpanKind.CONSUMER, TRACEPARENT, {"messaging.system": "redis"}) as inner:
        pass

    (recorded,) = exporter.get_finished_spans()
    assert recorded.name == "process allocate"
    assert recorded.kind is SpanKind.CONSUMER
    assert recorded.attributes == {"messaging.system": "redis"}
    assert recorded.parent is not None
    assert f"{recorded.parent.trace_id:032x}-{recorded.parent.span_id:016x}" == TRACEPARENT[3:52]
    assert inner == f"00-{TRACE}-{recorded.context.span_id:016x}-01"
    assert recorded.status.status_code is StatusCode.UNSET


def test_a_span_links_to_the_traces_of_a_batch(exporter: InMemorySpanExporter) -> None:
    others = (continued(None), continued(None))

    with span("publish", SpanKind.PRODUCER, TRACEPARENT, {}, links=others):
        pass

    (recorded,) = exporter.get_finished_spans()
    assert [f"{link.context.trace_id:032x}" for link in recorded.links] == [trace_id(other) for other in others]


def test_an_exception_fails_the_span_and_goes_on(exporter: InMemorySpanExporter) -> None:
    with (
        pytest.raises(KeyError, match="quota"),
        span("process allocate", SpanKind.CONSUMER, TRACEPARENT, {}),
    ):
        raise KeyError("quota" * 100)

    (recorded,) = exporter.get_finished_spans()
    assert recorded.status.status_code is StatusCode.ERROR
    assert len(recorded.status.description or "") == 200
    assert recorded.attributes == {"error.type": "KeyError"}
    assert not recorded.events, "no stack trace: it may hold a payload"


def test_a_trace_that_nobody_records_keeps_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    with span("accept", SpanKind.SERVER, TRACEPARENT, {}) as inner:
        assert inner == TRACEPARENT


def test_an_exception_whose_words_fail_fails_the_span_and_goes_on(exporter: InMemorySpanExporter) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    with pytest.raises(Mute), span("process", SpanKind.CONSUMER, TRACEPARENT, {}):
        raise Mute

    (finished,) = exporter.get_finished_spans()
    assert finished.status.description == "Mute"


def test_what_was_healed_is_counted_by_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    monkeypatch.setattr(metrics, "get_meter", provider.get_meter)
    telemetry._healed.cache_clear()
    try:
        telemetry.healed(3, "lost entry", pipeline="travel", stage="ride")
        telemetry.healed(2, "lost entry", pipeline="travel", stage="ride")
        telemetry.healed(1, "no marker")
        telemetry.healed(0, "dead worker")
        document = json.loads(str(reader.get_metrics_data().to_json()))  # type: ignore[union-attr]
    finally:
        telemetry._healed.cache_clear()
        provider.shutdown()

    (metric,) = document["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    assert metric["name"] == "postroad.healed"
    counted = {tuple(point["attributes"].values()): point["value"] for point in metric["data"]["data_points"]}
    assert counted == {("lost entry", "travel", "ride"): 5, ("no marker",): 1}
