"""Spans and trace context: every name of them that shows up outside is here.

Every task has a trace, whether or not anybody collects spans: without an SDK we make the ids ourselves, so that
the id in the answer, in SQL and in the logs is the same as the one a collector would show.

Whether a trace is recorded is decided once, where it begins. The decision travels with the task, in the last two digits
of its ``traceparent``; where that says no, nothing is built and nobody is asked.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import version
from uuid import UUID

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from .errors import first_line

TRACER = "postroad"
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
"""The semantic conventions that the names of attributes follow."""

SEND = "send"
RELAY = "relay"
PROCESS = "process"
CALL = "POST"

LINKS = 128
"""Links that a span has at most."""

Attributes = Mapping[str, str | int]

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def continued(traceparent: str | None) -> str:
    """``traceparent`` if it is a valid one (W3C Trace Context, version 00), else that of a new trace."""
    return traceparent if traceparent is not None and is_valid(traceparent) else _new()


def is_valid(traceparent: str) -> bool:
    """True if it is a ``traceparent`` of version 00."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return bool(match and match[1].strip("0") and match[2].strip("0"))


def current_traceparent() -> str | None:
    """The ``traceparent`` of the span that the caller is in; ``None`` if it is in none."""
    context = trace.get_current_span().get_span_context()
    return _traceparent(context) if context.is_valid else None


def trace_id(traceparent: str) -> str:
    """The 32 hexadecimal digits of the trace in a valid ``traceparent``."""
    return traceparent[3:35]


def is_on() -> bool:
    """True if somebody configured an SDK."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def is_recorded(traceparent: str) -> bool:
    """True if spans of this trace are recorded: what is not must cost nothing."""
    return traceparent[54] in "13579bdf" and is_on()


@contextmanager
def span(
    name: str, kind: SpanKind, parent: str | None, attributes: Attributes, *, links: Sequence[str] = ()
) -> Iterator[Span]:
    """Run a block in a span under ``parent``, ``None``: in a new trace. ``current`` is what the block hands on.

    The span is one that records nothing without an SDK, or if its trace is not recorded. An exception marks it as
    failed, and goes on.
    """
    if not is_on() or (parent is not None and not is_recorded(parent)):
        yield trace.INVALID_SPAN
        return
    with _tracer().start_as_current_span(
        name, _under(parent), kind, attributes, links=_links(links),
        record_exception=False, set_status_on_exception=False,
    ) as made:  # fmt: skip
        try:
            yield made
        except Exception as error:
            fail(made, type(error).__qualname__, first_line(error))
            raise


def note(name: str, kind: SpanKind, attributes: Attributes, *, links: Sequence[str], began: int) -> None:
    """Note what is over, and began at a time (ns since 1970), in a trace of its own that is linked to others.

    Only if one of those is recorded.
    """
    if linked := _links(links):
        _tracer().start_span(name, Context(), kind, attributes, links=linked, start_time=began).end()


def fail(failed: Span, kind: str, reason: str) -> None:
    """Mark a span as failed by an error of this kind."""
    failed.set_attribute("error.type", kind)
    failed.set_status(Status(StatusCode.ERROR, reason[:200]))


def traceparent_of(span: Span) -> str:
    """The context of ``span``."""
    return _traceparent(span.get_span_context())


def current(otherwise: str) -> str:
    """The ``traceparent`` of the span that we are in; ``otherwise``, our part of a trace, if that is not recorded."""
    found = trace.get_current_span()
    context = found.get_span_context()
    if found.is_recording():
        return _traceparent(context)
    if context.is_valid and not context.trace_flags.sampled and f"{context.trace_id:032x}" == trace_id(otherwise):
        return f"{otherwise[:53]}{int(otherwise[53:], 16) & 0xFE:02x}"  # the SDK of this process has decided against it
    return otherwise


def sending(pipeline: str, task_id: UUID) -> dict[str, str | int]:
    """The attributes of a span in which a task is submitted."""
    return {
        "messaging.system": "redis",
        "messaging.operation.name": SEND,
        "messaging.operation.type": "send",
        "messaging.destination.name": pipeline,
        "messaging.message.id": str(task_id),
        "postroad.pipeline": pipeline,
    }


def sent(pipeline: str, task_id: UUID, traceparent: str | None) -> str:
    """The context of a task that is submitted now, one of several: of a span of its own, which is over at once.

    Under ``traceparent`` if that is a valid one, else in a new trace, about which the SDK decides.
    """
    parent = traceparent if traceparent is not None and is_valid(traceparent) else None
    if not is_on() or (parent is not None and not is_recorded(parent)):
        return parent or _new()
    made = _tracer().start_span(f"{SEND} {pipeline}", _under(parent), SpanKind.PRODUCER, sending(pipeline, task_id))
    made.end()
    return _traceparent(made.get_span_context())


def _tracer() -> trace.Tracer:
    return _tracer_of(trace.get_tracer_provider())


@lru_cache(maxsize=1)
def _tracer_of(provider: trace.TracerProvider) -> trace.Tracer:
    return provider.get_tracer(TRACER, version("postroad"), SCHEMA_URL)


def _new() -> str:
    fresh = os.urandom(24).hex()
    return f"00-{fresh[:32]}-{fresh[32:]}-00"


def _traceparent(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _context(traceparent: str) -> SpanContext:
    trace_id, span_id, flags = (int(part, 16) for part in traceparent.split("-")[1:])
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))


def _under(parent: str | None) -> Context:
    return Context() if parent is None else trace.set_span_in_context(NonRecordingSpan(_context(parent)), Context())


def _links(traceparents: Sequence[str]) -> list[Link]:
    """Links to those that are recorded; the others lead nowhere."""
    recorded = [one for one in traceparents if is_recorded(one)]
    return [Link(_context(one)) for one in recorded[:LINKS]]
