"""Spans and trace context: every name of them that shows up outside is here.

Every task has a trace, whether or not anybody collects spans: without an SDK we make the ids ourselves, so that
the id in the answer, in SQL and in the logs is the same as the one a collector would show.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from opentelemetry import metrics, trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .errors import first_line

TRACER = "postroad"
ACCEPT = "accept"
PUBLISH = "publish"
PROCESS = "process"
CALL = "POST"

HEALED = "postroad.healed"
"""The counter of what was lost, left or stuck, and was put right."""

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_propagator = TraceContextTextMapPropagator()


def continued(traceparent: str | None) -> str:
    """``traceparent`` if it is a valid one (W3C Trace Context, version 00), else that of a new trace."""
    match = _TRACEPARENT.fullmatch(traceparent or "")
    if match and match[1].strip("0") and match[2].strip("0"):
        return match[0]
    fresh = os.urandom(24).hex()
    return f"00-{fresh[:32]}-{fresh[32:]}-00"


def current_traceparent() -> str | None:
    """The ``traceparent`` of the span that the caller is in; ``None`` if it is in none."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get("traceparent")


def trace_id(traceparent: str) -> str:
    """The 32 hexadecimal digits of the trace in a valid ``traceparent``."""
    return traceparent[3:35]


@contextmanager
def span(
    name: str,
    kind: SpanKind,
    traceparent: str,
    attributes: Mapping[str, str | int],
    *,
    links: tuple[str, ...] = (),
) -> Iterator[str]:
    """Run a block in a span that continues ``traceparent``; yields the ``traceparent`` for what the block causes.

    Without an SDK nothing is recorded and the given ``traceparent`` is handed on. An exception marks the span as
    failed.
    """
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        # Nobody configured an SDK: what is not recorded must cost nothing.
        yield traceparent
        return
    tracer = trace.get_tracer(TRACER)
    context = _propagator.extract({"traceparent": traceparent})
    linked = [
        Link(trace.get_current_span(_propagator.extract({"traceparent": link})).get_span_context()) for link in links
    ]
    with tracer.start_as_current_span(
        name, context, kind, attributes, links=linked, record_exception=False, set_status_on_exception=False
    ) as current:
        carrier: dict[str, str] = {}
        if current.is_recording():
            _propagator.inject(carrier)
        try:
            yield carrier.get("traceparent", traceparent)
        except Exception as error:
            current.set_attribute("error.type", type(error).__qualname__)
            current.set_status(Status(StatusCode.ERROR, first_line(error)[:200]))
            raise


def current(otherwise: str) -> str:
    """The ``traceparent`` of the span that we are in; ``otherwise`` if there is none that is recorded."""
    carrier: dict[str, str] = {}
    if trace.get_current_span().is_recording():
        _propagator.inject(carrier)
    return carrier.get("traceparent", otherwise)


def healed(count: int, reason: str, *, pipeline: str | None = None, stage: str | None = None) -> None:
    """Count ``count`` stages of tasks, or entries, that were put right, and why, in the author's OpenTelemetry metrics.

    ``reason`` is one of a handful of words. Without an SDK nothing is counted.
    """
    if count:
        attributes = {"reason": reason, "pipeline": pipeline, "stage": stage}
        _healed().add(count, {name: value for name, value in attributes.items() if value is not None})


@cache
def _healed() -> metrics.Counter:
    return metrics.get_meter(TRACER).create_counter(
        HEALED, unit="1", description="Stages of tasks asked for again, and entries taken over, after a loss"
    )
