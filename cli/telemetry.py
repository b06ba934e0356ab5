"""Collect what a process tells of itself: OpenTelemetry's SDK, if its variables ``OTEL_*`` or the settings ask for it.

Exporting is the affair of threads of its own. A collector that is away costs spans, never work.
"""

import errno
import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import entry_points, version
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes

from ..core import metrics
from ..core.errors import SettingsError, first_line
from ..core.settings import Settings

log = logging.getLogger(__name__)

FLUSH = 5.0
"""Seconds that a stopping process waits for a collector to take what is left."""

PORTS = 100
"""So many ports are tried, from the one that was named."""

PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
"""What OTEL_EXPORTER_OTLP_PROTOCOL can be, and the exporter of it."""


@contextmanager
def collected(
    role: str, instance: str, settings: Settings, *, environ: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Collect what happens in the block; ``role`` and ``instance`` say which process this is.

    An SDK that is there already, the author's, is left alone. Raises ``SettingsError`` if an exporter is not there.
    """
    variables = os.environ if environ is None else environ
    if variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        yield
        return
    resource = _resource(role, instance)
    ends = [_collect_spans(resource, variables), _collect_metrics(role, resource, settings, variables)]
    try:
        yield
    finally:
        _end([end for end in ends if end])


class LinkedSampler(Sampler):
    """Asks ``sampler``, except for what begins a trace of its own beside one that is recorded: that is recorded too.

    So of a task that is traced also the publishing is, and what is tried long after.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """The decision."""
        is_root = not trace.get_current_span(parent_context).get_span_context().is_valid
        if is_root and any(link.context.trace_flags.sampled for link in links or ()):
            return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes, trace_state)
        return self._sampler.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        """As OpenTelemetry names it."""
        return f"Linked({self._sampler.get_description()})"


def _collect_spans(resource: Resource, variables: Mapping[str, str]) -> Callable[[], None] | None:
    exporters = _exporters("traces", variables)
    if not exporters or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.sampler = LinkedSampler(provider.sampler)  # the one that OTEL_TRACES_SAMPLER names
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter()))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _collect_metrics(
    role: str, resource: Resource, settings: Settings, variables: Mapping[str, str]
) -> Callable[[], None] | None:
    exporters = _exporters("metrics", variables)
    if not exporters and not settings.metrics:
        return None
    if metrics.is_on():
        if settings.metrics:
            log.warning("the app has a meter provider of its own: no metrics at %s", settings.metrics)
        return None
    metrics.DISTRIBUTIONS.add_up()
    readers: list[MetricReader] = [_Sent(exporter()) for exporter in exporters]
    stop = _serve(settings, readers) if settings.metrics else None
    provider = MeterProvider(readers, resource, shutdown_on_exit=False)
    set_meter_provider(provider)
    metrics.build_info(role)

    def end() -> None:
        if stop:
            stop()
        provider.shutdown()

    return end


def _serve(settings: Settings, readers: list[MetricReader]) -> Callable[[], None]:
    """Serve what a reader of Prometheus', which is added to ``readers``, collects; what stops that."""
    try:
        client = importlib.import_module("prometheus_client")
        exporter = importlib.import_module("opentelemetry.exporter.prometheus")
    except ImportError:
        raise SettingsError('metrics: needs another package: pip install "postroad[prometheus]"') from None
    host, port = settings.metrics_address()
    server, thread = _listen(client, host, port, settings)
    scraped = type("_Scraped", (WithDistributions, exporter.PrometheusMetricReader), {})
    readers.append(scraped(scope_info_enabled=False))
    log.info("metrics on http://%s:%d/metrics", host, server.server_port)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


class WithDistributions:
    """A reader of OpenTelemetry's that also receives the histograms which we add up ourselves."""

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **more: Any) -> None:
        whole = with_distributions(metrics_data)
        super()._receive_metrics(whole, timeout_millis=timeout_millis, **more)  # type: ignore[misc]  # of a mixin


class _Sent(WithDistributions, PeriodicExportingMetricReader): ...


def with_distributions(data: MetricsData) -> MetricsData:
    """``data`` with our histograms among our other metrics."""
    now = time.time_ns()
    ours = [_histogram(name, found, now) for name, found in metrics.DISTRIBUTIONS.read().items() if found]
    return MetricsData(
        [
            replace(
                of_resource,
                scope_metrics=[
                    replace(of_scope, metrics=[*of_scope.metrics, *ours])
                    if of_scope.scope.name == metrics.METER
                    else of_scope
                    for of_scope in of_resource.scope_metrics
                ],
            )
            for of_resource in data.resource_metrics
        ]
    )


def _histogram(name: str, found: Sequence[metrics.Distribution], now: int) -> Metric:
    unit, description = metrics.HISTOGRAMS[name]
    points = [
        HistogramDataPoint(
            attributes=dict(one.labels),
            start_time_unix_nano=_BEGAN,
            time_unix_nano=now,
            count=sum(one.counts),
            sum=one.sum,
            bucket_counts=one.counts,
            explicit_bounds=metrics.BUCKETS,
            min=one.least,
            max=one.most,
        )
        for one in found
    ]
    return Metric(name, description, unit, Histogram(points, AggregationTemporality.CUMULATIVE))


_BEGAN = time.time_ns()


def _listen(client: Any, host: str, port: int, settings: Settings) -> tuple[Any, threading.Thread]:
    """A server of ``client``'s on ``port`` or the next free one, for processes that share their settings."""
    last = port + PORTS - 1 if port else 0
    while True:
        try:
            server, thread = client.start_http_server(port, addr=host)
            return server, thread
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port >= last:
                reason = error.strerror or error
                raise SettingsError(f"metrics: cannot listen on {settings.metrics}: {reason}") from error
        port += 1


def _exporters(signal: str, variables: Mapping[str, str]) -> list[Any]:
    """The classes of the exporters that the variables name; OTLP's if they name an endpoint alone."""
    has_endpoint = any(
        variables.get(f"OTEL_EXPORTER_OTLP_{infix}ENDPOINT", "").strip() for infix in ("", f"{signal.upper()}_")
    )
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    named = variables.get(variable, "").strip() or ("otlp" if has_endpoint else "none")
    names = [name.strip() for name in named.split(",") if name.strip() not in ("", "none")]
    return [_exporter(signal, name, variable, variables) for name in names]


def _exporter(signal: str, name: str, variable: str, variables: Mapping[str, str]) -> Any:
    wanted = name
    if name == "otlp":
        protocol = (
            variables.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "").strip()
            or variables.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip()
            or "http/protobuf"
        )
        if protocol not in PROTOCOLS:
            raise SettingsError(f"OTEL_EXPORTER_OTLP_PROTOCOL: one of {', '.join(PROTOCOLS)}, not {protocol!r}")
        wanted = PROTOCOLS[protocol]
    found = next(iter(entry_points(group=f"opentelemetry_{signal}_exporter", name=wanted)), None)
    if found is None:
        hint = 'pip install "postroad[otlp]"' if wanted in PROTOCOLS.values() else "none of that name is installed"
        raise SettingsError(f"{variable}: there is no exporter {name!r} here: {hint}")
    return found.load()


def _resource(role: str, instance: str) -> Resource:
    """Who this is, as OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say, and where they do not, we."""
    ours = {"service.name": f"postroad-{role}", "service.instance.id": instance, "service.version": version("postroad")}
    said = {
        pair.partition("=")[0].strip() for pair in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",") if pair
    }
    if os.environ.get("OTEL_SERVICE_NAME", "").strip():
        said.add("service.name")
    return Resource.create({name: value for name, value in ours.items() if name not in said})


def _end(ends: Sequence[Callable[[], None]]) -> None:
    """Hand over what is left, but do not wait for long: the collector may be away."""

    def end() -> None:
        for one in ends:
            try:
                one()
            except Exception as error:
                log.warning("what was collected last is lost: %s", first_line(error))

    ending = threading.Thread(target=end, name="telemetry", daemon=True)
    ending.start()
    ending.join(FLUSH)
