"""Traces that go on from stage to stage, with an SDK or without."""

from collections.abc import Iterator
from uuid import UUID

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from postroad.core.telemetry import LINKS, continued, current, note, sending, sent, span, trace_id

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
UNSAMPLED = f"00-{TRACE}-00f067aa0ba902b7-00"
TASK_ID = UUID("01990000-0000-7000-8000-000000000001")


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


def test_without_an_sdk_a_block_hands_on_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)

    with span("process road.ride", SpanKind.CONSUMER, TRACEPARENT, {}) as made:
        assert current(TRACEPARENT) == TRACEPARENT

    assert not made.is_recording()


def test_a_span_continues_the_trace_and_the_block_hands_on_its_own(exporter: InMemorySpanExporter) -> None:
    with span("process road.ride", SpanKind.CONSUMER, TRACEPARENT, {"messaging.system": "redis"}):
        inner = current(TRACEPARENT)

    (recorded,) = exporter.get_finished_spans()
    assert recorded.name == "process road.ride"
    assert recorded.kind is SpanKind.CONSUMER
    assert recorded.attributes == {"messaging.system": "redis"}
    assert recorded.parent is not None
    assert f"{recorded.parent.trace_id:032x}-{recorded.parent.span_id:016x}" == TRACEPARENT[3:52]
    assert inner == f"00-{TRACE}-{recorded.context.span_id:016x}-01"
    assert recorded.status.status_code is StatusCode.UNSET


def test_a_span_without_a_parent_begins_a_trace_though_there_is_another_around_it(
    exporter: InMemorySpanExporter,
) -> None:
    with (
        span("outer", SpanKind.SERVER, None, {}),
        span("process road.ride", SpanKind.CONSUMER, None, {}, links=[TRACEPARENT, UNSAMPLED]),
    ):
        pass

    inner, outer = exporter.get_finished_spans()
    assert inner.parent is None
    assert inner.context.trace_id != outer.context.trace_id
    assert [f"{link.context.trace_id:032x}" for link in inner.links] == [TRACE], "to what is recorded"


def test_nothing_is_recorded_of_a_trace_that_is_not(exporter: InMemorySpanExporter) -> None:
    with span("process road.ride", SpanKind.CONSUMER, UNSAMPLED, {}):
        assert current(UNSAMPLED) == UNSAMPLED
    note("relay road.ride", SpanKind.CLIENT, {}, links=[UNSAMPLED], began=1)

    assert sent("road", TASK_ID, UNSAMPLED) == UNSAMPLED
    assert not exporter.get_finished_spans()


def test_what_is_over_is_noted_with_links_to_the_traces_of_a_batch(exporter: InMemorySpanExporter) -> None:
    others = [f"00-{number:032x}-00f067aa0ba902b7-01" for number in range(1, LINKS + 10)]

    note("relay road.ride", SpanKind.CLIENT, {}, links=[UNSAMPLED, *others], began=1_000)

    (recorded,) = exporter.get_finished_spans()
    assert [f"{link.context.trace_id:032x}" for link in recorded.links] == [one[3:35] for one in others[:LINKS]]
    assert recorded.parent is None
    assert recorded.start_time == 1_000


def test_each_of_many_tasks_is_sent_in_a_trace_of_its_own_or_in_the_callers(exporter: InMemorySpanExporter) -> None:
    alone, other, within = (sent("road", TASK_ID, given) for given in (None, "nonsense", TRACEPARENT))

    assert len({trace_id(one) for one in (alone, other, within)}) == 3
    first, _, third = exporter.get_finished_spans()
    assert alone[3:52] == f"{first.context.trace_id:032x}-{first.context.span_id:016x}"
    assert int(alone[-2:], 16) & 1, "and recorded"
    assert first.parent is None
    assert within == f"00-{TRACE}-{third.context.span_id:016x}-01"
    assert (third.name, third.kind) == ("send road", SpanKind.PRODUCER)
    assert third.attributes == sending("road", TASK_ID)


def test_an_exception_fails_the_span_and_goes_on(exporter: InMemorySpanExporter) -> None:
    with (
        pytest.raises(KeyError, match="quota"),
        span("process road.ride", SpanKind.CONSUMER, TRACEPARENT, {}),
    ):
        raise KeyError("quota" * 100)

    (recorded,) = exporter.get_finished_spans()
    assert recorded.status.status_code is StatusCode.ERROR
    assert len(recorded.status.description or "") == 200
    assert recorded.attributes == {"error.type": "KeyError"}
    assert not recorded.events, "no stack trace: it may hold a payload"


def test_what_the_sdk_decides_against_is_told_to_those_who_come_after(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    with span("send road", SpanKind.PRODUCER, TRACEPARENT, {}):
        assert current(TRACEPARENT) == UNSAMPLED, "the same place in the same trace"
    assert int(sent("road", TASK_ID, None)[-2:], 16) & 1 == 0


def test_an_exception_whose_words_fail_fails_the_span_and_goes_on(exporter: InMemorySpanExporter) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    with pytest.raises(Mute), span("process", SpanKind.CONSUMER, TRACEPARENT, {}):
        raise Mute

    (finished,) = exporter.get_finished_spans()
    assert finished.status.description == "Mute"
