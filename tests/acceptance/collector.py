"""A collector of OpenTelemetry's that keeps what it is sent, over HTTP and gRPC, and can be asked."""

import contextlib
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status


@dataclass(frozen=True, slots=True)
class Told:
    """A span as it was sent. Ids are in hexadecimal; ``parent`` is empty for the first of a trace."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    links: tuple[tuple[str, str], ...]
    attributes: dict[str, Any]
    is_error: bool
    service: str
    instance: str
    scope: str
    began: int
    ended: int


@dataclass(slots=True)
class Collector:
    """What was sent. ``url`` takes OTLP over HTTP, ``target`` over gRPC."""

    url: str = ""
    target: str = ""
    spans: list[Told] = field(default_factory=list)
    metrics: set[str] = field(default_factory=set)

    def named(self, name: str) -> list[Told]:
        """The spans of this name, in the order in which they began."""
        return sorted((span for span in list(self.spans) if span.name == name), key=lambda span: span.began)

    def names(self) -> set[str]:
        """All names there are."""
        return {span.name for span in list(self.spans)}

    def take(self, request: ExportTraceServiceRequest) -> None:
        """Keep the spans of ``request``."""
        for of_resource in request.resource_spans:
            resource = _attributes(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                self.spans += [_told(span, resource, of_scope.scope.name) for span in of_scope.spans]

    def take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        """Keep the names of the metrics in ``request``."""
        for of_resource in request.resource_metrics:
            for of_scope in of_resource.scope_metrics:
                self.metrics |= {metric.name for metric in of_scope.metrics}


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """A collector for the length of the block."""
    kept = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces":
                kept.take(ExportTraceServiceRequest.FromString(body))
            elif self.path == "/v1/metrics":
                kept.take_metrics(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None: ...

    class Servicer(TraceServiceServicer):
        def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
            kept.take(request)
            return ExportTraceServiceResponse()

    over_http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    over_http.daemon_threads = True
    serving = threading.Thread(target=over_http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    over_grpc = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(Servicer(), over_grpc)  # type: ignore[no-untyped-call]
    kept.url = f"http://127.0.0.1:{over_http.server_port}"
    kept.target = f"http://127.0.0.1:{over_grpc.add_insecure_port('127.0.0.1:0')}"
    serving.start()
    over_grpc.start()
    try:
        yield kept
    finally:
        over_grpc.stop(None).wait()
        over_http.shutdown()
        over_http.server_close()
        serving.join()


def _told(span: Span, resource: dict[str, Any], scope: str) -> Told:
    return Told(
        name=span.name,
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        attributes=_attributes(span.attributes),
        is_error=span.status.code == Status.STATUS_CODE_ERROR,
        service=resource["service.name"],
        instance=resource["service.instance.id"],
        scope=scope,
        began=span.start_time_unix_nano,
        ended=span.end_time_unix_nano,
    )


def _attributes(pairs: Iterable[Any]) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
