"""The SDK is set up as OpenTelemetry's variables say, and not at all if they say nothing, or somebody else has."""

from collections.abc import Iterator, Sequence

import prometheus_client
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased

from postroad.cli.telemetry import LinkedSampler, _exporters, _listen, _resource, collected
from postroad.core import metrics, telemetry
from postroad.core.errors import SettingsError
from postroad.core.settings import Settings

RECORDED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNRECORDED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"


@pytest.fixture
def provided(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[TracerProvider]]:
    """The providers that were set. The first one to be set counts, as with OpenTelemetry itself."""
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_TRACES_SAMPLER"):
        monkeypatch.delenv(name, raising=False)
    providers: list[TracerProvider] = []
    proxy = trace.ProxyTracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: providers[0] if providers else proxy)
    monkeypatch.setattr(trace, "set_tracer_provider", providers.append)
    yield providers
    for provider in providers:
        provider.shutdown()


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none"},
        {
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        },
        {"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_unless_it_is_asked_for_there_is_no_sdk(provided: list[TracerProvider], variables: dict[str, str]) -> None:
    with collected("relay", "host:1:0", Settings(), environ=variables):
        assert not telemetry.is_on()
        assert not metrics.is_on()

    assert provided == []


def test_the_sdk_of_the_author_is_left_alone(provided: list[TracerProvider]) -> None:
    authors = TracerProvider()
    provided.append(authors)

    with collected("stage", "host:1:0", Settings(), environ={"OTEL_TRACES_EXPORTER": "console"}):
        assert trace.get_tracer_provider() is authors

    assert provided == [authors]


@pytest.mark.usefixtures("provided")
def test_what_is_left_is_handed_over_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    exported: list[str] = []

    def export(exporter: ConsoleSpanExporter, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        exported.extend(span.name for span in spans)
        return SpanExportResult.SUCCESS

    monkeypatch.setattr(ConsoleSpanExporter, "export", export)

    with (
        collected("relay", "host:1:0", Settings(), environ={"OTEL_TRACES_EXPORTER": "console"}),
        telemetry.span("process road.ride", trace.SpanKind.CONSUMER, None, {}),
    ):
        pass

    assert exported == ["process road.ride"]


@pytest.mark.parametrize(
    ("variables", "exporters"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, [OverHttp]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, [OverGrpc]),
        ({"OTEL_TRACES_EXPORTER": "otlp, console"}, [OverHttp, ConsoleSpanExporter]),
        (
            {
                "OTEL_TRACES_EXPORTER": "otlp",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            [OverHttp],
        ),
    ],
)
def test_exporters_are_found_by_their_variables(variables: dict[str, str], exporters: list[type]) -> None:
    assert _exporters("traces", variables) == exporters


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "jeager"}, "OTEL_TRACES_EXPORTER: there is no exporter 'jeager'"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            "OTEL_EXPORTER_OTLP_PROTOCOL: one of http/protobuf, grpc, not 'http/json'",
        ),
    ],
)
def test_an_exporter_that_is_not_there_is_said(variables: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        _exporters("traces", variables)


def test_a_process_is_named_by_its_role_unless_somebody_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    monkeypatch.delenv("OTEL_RESOURCE_ATTRIBUTES", raising=False)
    ours = _resource("relay", "host:1:0").attributes
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=one,deployment.environment=test")
    theirs = _resource("relay", "host:1:0").attributes

    assert (ours["service.name"], ours["service.instance.id"]) == ("postroad-relay", "host:1:0")
    assert (theirs["service.name"], theirs["service.instance.id"]) == ("shop", "one")
    assert theirs["deployment.environment"] == "test"


def test_what_is_linked_to_a_recorded_trace_is_recorded_whatever_the_share(provided: list[TracerProvider]) -> None:
    provider = TracerProvider(sampler=LinkedSampler(ParentBased(ALWAYS_OFF)))
    provided.append(provider)

    with telemetry.span("again", trace.SpanKind.CONSUMER, None, {}, links=[RECORDED]) as linked:
        assert linked.is_recording()
    with telemetry.span("again", trace.SpanKind.CONSUMER, None, {}, links=[UNRECORDED]) as other:
        assert not other.is_recording()
    with telemetry.span("within", trace.SpanKind.CONSUMER, RECORDED, {}) as within:
        assert within.is_recording()


def test_the_share_that_the_variables_name_holds(
    provided: list[TracerProvider], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.01")

    with collected("intake", "host:1:0", Settings(), environ={"OTEL_TRACES_EXPORTER": "console"}):
        described = provided[0].sampler.get_description()

    assert TraceIdRatioBased(0.01).get_description() in described


def test_processes_that_share_their_settings_serve_metrics_side_by_side() -> None:
    first, serving = _listen(prometheus_client, "127.0.0.1", 0, Settings())
    settings = Settings(metrics=f"127.0.0.1:{first.server_port}")
    second, also_serving = _listen(prometheus_client, *settings.metrics_address(), settings)

    assert second.server_port > first.server_port
    for server, thread in ((first, serving), (second, also_serving)):
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_address_that_is_not_ours_is_said() -> None:
    settings = Settings(metrics="192.0.2.1:9464")

    with pytest.raises(SettingsError, match=r"metrics: cannot listen on 192\.0\.2\.1:9464: "):
        _listen(prometheus_client, *settings.metrics_address(), settings)


@pytest.mark.parametrize("value", ["9464", ":9464", "localhost", "localhost:", "localhost:http", "h:65536"])
def test_metrics_need_a_host_and_a_port(value: str) -> None:
    with pytest.raises(SettingsError, match="metrics: HOST:PORT, as "):
        Settings(metrics=value)
