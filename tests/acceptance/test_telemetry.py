"""What real processes tell of a task: its trace in a collector, its lines in the log and in Postgres, the metrics.

One story for all tests: a task with a retry, a fan-out, a service, and a dead letter that is requeued.
"""

import contextlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from postroad.core.servers import Servers
from postroad.core.settings import Settings
from postroad.testing.places import fresh_database, fresh_prefix
from tests.acceptance.collector import Collector, Told, collecting
from tests.acceptance.deployment import ROOT, Deployment, Process, wait_until

UNSAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


class Observed(Deployment):
    """A deployment whose processes are given ``variables``, too."""

    variables: dict[str, str]

    def environment(self, **changes: Any) -> dict[str, str]:
        """The same, with the variables."""
        return super().environment(**changes) | self.variables


@dataclass(slots=True)
class Story:
    """What became of the task, and what was told of it."""

    collector: Collector
    task: str
    answer: dict[str, Any]
    traceparent: str
    priced: list[str] = field(default_factory=list)
    """The ``traceparent`` of each request that the service had."""
    events: list[dict[str, Any]] = field(default_factory=list)
    journey: list[dict[str, Any]] = field(default_factory=list)
    """Its attempts, in the words of the view ``task_journey``."""
    logs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    metrics: dict[str, dict[tuple[tuple[str, str], ...], float]] = field(default_factory=dict)
    """What all processes served, by the name of the sample and its labels."""

    def of_task(self) -> list[Told]:
        """The spans of the task's trace."""
        return [span for span in self.collector.spans if span.trace == self.answer["trace_id"]]

    def count(self, name: str, **labels: str) -> float:
        """The value of a sample; the sum, of those that have these labels."""
        return sum(value for found, value in self.metrics[name].items() if labels.items() <= dict(found).items())

    def lines(self, name: str, message: str) -> list[dict[str, Any]]:
        """The log lines of a process whose message begins so."""
        return [line for line in self.logs[name] if line["message"].startswith(message)]


@contextlib.contextmanager
def price_service(told: list[str]) -> Iterator[str]:
    """A service that answers 204, and keeps the ``traceparent`` of each request; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            told.append(self.headers["traceparent"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/price"
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


@pytest.fixture(scope="module")
def story(servers: Servers, _template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("told")
    priced: list[str] = []
    with (
        fresh_database(servers, _template) as database,
        fresh_prefix(servers) as prefix,
        collecting() as collector,
        price_service(priced) as url,
    ):
        settings = Settings(
            database_url=database, redis_url=servers.redis_url, prefix=prefix, app="tests.acceptance.told", port=0,
            metrics="127.0.0.1:0",
        )  # fmt: skip
        deployment = Observed(settings, folder)
        over_http = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_METRIC_EXPORT_INTERVAL": "500"}
        over_grpc = {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": collector.target,
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
            # What is decided at the door holds here.
            "OTEL_TRACES_SAMPLER": "parentbased_always_off",
        }
        try:
            yield _tell(deployment, folder, collector, priced, url, over_http, over_grpc)
        finally:
            deployment.close()


def _tell(
    deployment: Observed, folder: Path, collector: Collector, priced: list[str], url: str,
    over_http: dict[str, str], over_grpc: dict[str, str],
) -> Story:  # fmt: skip
    paid = folder / "paid"
    deployment.variables = over_grpc | {"PRICE_URL": url, "PAID": str(paid)}
    worker = deployment.process("worker", "stage", "--all")
    worker.await_line("working on")
    deployment.variables = over_http
    relay = deployment.process("relay", "relay", "--log-level", "debug")
    intake = deployment.process("intake", "serve", "--log-level", "debug", port=0)
    deployment.await_intake(intake)
    relay.await_line("relaying from")
    worker.await_line("working on")

    def post(path: str, document: Any, **headers: str) -> Any:
        return deployment.client.post(deployment.url + path, json=document, headers=headers)

    answer = post("/v1/tasks", {"pipeline": "told", "payload": {"secret": "s3cret"}})
    assert answer.status_code == 202, answer.text
    told = answer.json()
    assert deployment.wait_until_finished(1) == {"failed": 1}
    paid.touch()
    requeued = post("/v1/dead-letters:requeue", {"pipeline": "told", "reason": "paid"})
    assert requeued.status_code == 200, requeued.text
    assert deployment.wait_until_finished(1) == {"completed": 1}
    # Two that nobody records, and two that come as a batch.
    post("/v1/tasks", {"pipeline": "told", "payload": None}, traceparent=UNSAMPLED)
    deployment.submit("told", 1, 2)
    deployment.wait_until_finished(4)
    assert post("/v1/tasks", {"pipeline": "nowhere", "payload": 1}).status_code == 422
    processes = (worker, relay, intake)
    wait_until(lambda: "postroad_outbox_unpublished" in served(deployment, relay), "the relay has looked")
    texts = [served(deployment, process) for process in processes]
    rows = deployment.query(
        "select type, stage, data, traceparent from postroad.outbox where task_id = %s order by position",
        told["task_id"],
    )
    steps = deployment.query(
        "select stage, attempt, outcome, trace_id, span_id, worker, started_at, ended_at from postroad.task_journey"
        " where task_id = %s and outcome is not null order by position",
        told["task_id"],
    )
    names = ("stage", "attempt", "outcome", "trace_id", "span_id", "worker", "started_at", "ended_at")
    for process in processes:
        assert process.terminate() == 0, process.log
    return Story(
        collector, told["task_id"], told, answer.headers["traceparent"], priced,
        events=[dict(zip(("type", "stage", "data", "traceparent"), row, strict=True)) for row in rows],
        journey=[dict(zip(names, row, strict=True)) for row in steps],
        metrics=samples(texts),
        logs={process.name: [json.loads(line) for line in process.log.splitlines()] for process in processes},
    )  # fmt: skip


def served(deployment: Deployment, process: Process) -> str:
    """The metrics of a process, as Prometheus reads them."""
    (url,) = re.findall(r"metrics on (http://[^\"]+)", process.log)
    return deployment.client.get(url).text


def samples(texts: list[str]) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """All samples of these texts."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def attempts(spans: list[Told]) -> list[tuple[str, int, str]]:
    """Stage, attempt and outcome of the attempts among ``spans``, in the order in which they began."""
    return [
        (span.attributes["postroad.stage"], span.attributes["postroad.attempt"], span.attributes["postroad.outcome"])
        for span in sorted(spans, key=lambda span: span.began)
        if span.name.startswith("process ")
    ]


def test_a_task_is_one_trace_from_the_request_to_the_last_stage(story: Story) -> None:
    spans = story.of_task()

    (server,) = (span for span in spans if span.kind == "SERVER")
    (send,) = (span for span in spans if span.kind == "PRODUCER")
    (call,) = (span for span in spans if span.kind == "CLIENT")
    processed = [span for span in spans if span.kind == "CONSUMER"]
    assert len(spans) == 3 + len(processed), "and nothing else"
    assert (server.name, server.parent) == ("POST /v1/tasks", "")
    assert (send.name, send.parent) == ("send told", server.id)
    assert story.traceparent[3:52] == f"{send.trace}-{send.id}"
    assert {(span.parent, span.links) for span in processed} == {(send.id, ((send.trace, send.id),))}
    assert (call.name, call.parent) == ("POST", story.collector.named("process told.price")[0].id)
    assert server.began <= send.began <= send.ended <= server.ended
    assert {span.service for span in (server, send)} == {"postroad-intake"}
    assert {span.service for span in (call, *processed)} == {"postroad-stage"}
    assert {span.scope for span in spans} == {"postroad"}


def test_the_trace_and_the_journey_tell_the_same_span_by_span(story: Story) -> None:
    spans = {
        span.id: span
        for span in story.collector.spans
        if span.name.startswith("process ") and span.attributes["messaging.message.id"] == story.task
    }

    assert [(step["stage"], step["attempt"], step["outcome"]) for step in story.journey][:2] == [
        ("check", 1, "failed"),
        ("check", 2, "done"),
    ]
    assert len(story.journey) == len(spans) == 6
    for step in story.journey:
        span = spans[step["span_id"]]
        assert span.trace == step["trace_id"]
        assert span.instance == step["worker"]
        assert attempts([span]) == [(step["stage"], step["attempt"], step["outcome"])]
        # The step has in it what is done before and after the handler.
        assert step["started_at"].timestamp() * 1e9 <= span.began + 1000
        assert span.ended <= step["ended_at"].timestamp() * 1e9 + 1000


def test_what_was_requeued_begins_a_trace_of_its_own_with_a_link(story: Story) -> None:
    (again,) = (
        span
        for span in story.collector.named("process told.settle")
        if span.attributes["messaging.message.id"] == story.task and span.trace != story.answer["trace_id"]
    )

    assert again.parent == ""
    assert again.links == ((story.answer["trace_id"], story.traceparent[36:52]),)
    assert again.attributes["postroad.outcome"] == "done"


def test_what_was_published_is_linked_to_the_tasks(story: Story) -> None:
    relayed = [span for span in story.collector.spans if span.name.startswith("relay ")]
    context = (story.answer["trace_id"], story.traceparent[36:52])

    of_task = Counter(span.name for span in relayed if context in span.links)
    # Perhaps more often: a relay that begins asks for all that is ready.
    assert of_task >= Counter(
        {"relay told.check": 1, "relay told.left": 1, "relay told.price": 1, "relay told.settle": 2}
    )
    assert len(of_task) == 4
    assert {(span.kind, span.parent, span.service) for span in relayed} == {("CLIENT", "", "postroad-relay")}
    assert all(span.links for span in relayed), "of nothing else is told"
    assert all(span.attributes["messaging.batch.message_count"] >= len(span.links) for span in relayed)


def test_a_failure_is_told_as_one_and_a_success_is_not(story: Story) -> None:
    first, second = (span for span in story.of_task() if span.name == "process told.check")
    (dead,) = (span for span in story.of_task() if span.name == "process told.settle")

    assert (first.is_error, first.attributes["error.type"]) == (True, "Retry")
    assert (dead.is_error, dead.attributes["error.type"]) == (True, "Reject")
    assert not second.is_error
    assert "error.type" not in second.attributes


def test_the_attributes_are_those_of_the_conventions(story: Story) -> None:
    server, send, processed, call = (
        next(span for span in story.of_task() if span.name == name)
        for name in ("POST /v1/tasks", "send told", "process told.left", "POST")
    )

    assert server.attributes["http.request.method"] == "POST"
    assert server.attributes["http.route"] == "/v1/tasks"
    assert server.attributes["http.response.status_code"] == 202
    assert send.attributes == {
        "messaging.system": "redis",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "told",
        "messaging.message.id": story.task,
        "postroad.pipeline": "told",
    }
    assert processed.attributes == {
        "messaging.system": "redis",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "told.left",
        "messaging.consumer.group.name": "told.left",
        "messaging.message.id": story.task,
        "postroad.pipeline": "told",
        "postroad.stage": "left",
        "postroad.attempt": 1,
        "postroad.outcome": "done",
    }
    assert call.attributes["http.request.method"] == "POST"
    assert call.attributes["http.response.status_code"] == 204
    assert call.attributes["url.full"] == "${PRICE_URL}"
    assert call.attributes["server.address"] == "127.0.0.1"
    assert story.priced[0][3:52] == f"{call.trace}-{call.id}", "what the service is told leads to the call"


def test_what_is_not_recorded_at_the_door_is_recorded_nowhere(story: Story) -> None:
    assert UNSAMPLED[3:35] not in {span.trace for span in story.collector.spans}
    assert UNSAMPLED in story.priced, "but its trace goes on"


def test_each_task_of_a_batch_has_a_trace_of_its_own(story: Story) -> None:
    sent = [span for span in story.collector.named("send told") if span.trace != story.answer["trace_id"]]

    assert len(sent) == 2
    assert len({span.trace for span in sent}) == 2
    assert {span.parent for span in sent} == {""}


def test_a_worker_is_told_by_the_name_that_stands_in_the_journey(story: Story) -> None:
    workers = {event["data"]["worker"] for event in story.events if "worker" in event["data"]}

    assert {span.instance for span in story.collector.spans if span.service == "postroad-stage"} == workers


def test_each_attempt_has_a_line_and_so_have_requests_and_what_is_published(story: Story) -> None:
    lines = [line for line in story.lines("worker", "stage told.") if line["task_id"] == story.task]

    assert sorted((line["stage"], line["attempt"], line["outcome"]) for line in lines) == [
        ("check", 1, "failed"), ("check", 2, "done"), ("left", 1, "done"), ("price", 1, "done"),
        ("settle", 1, "dead"), ("settle", 1, "done"),
    ]  # fmt: skip
    assert {line["trace_id"] for line in lines} == {story.answer["trace_id"]}
    assert all(line["duration_ms"] >= 0 for line in lines)
    asked = story.lines("intake", "POST /v1/tasks: 202")[0]
    assert {name: asked[name] for name in ("route", "status", "trace_id")} == {
        "route": "/v1/tasks", "status": 202, "trace_id": story.answer["trace_id"],
    }  # fmt: skip
    assert all(line["entries"] > 0 and line["duration_ms"] >= 0 for line in story.lines("relay", "published "))
    assert not any("s3cret" in str(lines) for lines in story.logs.values())


def test_what_a_handler_logs_is_in_the_log_and_in_the_journey(story: Story) -> None:
    said = [line for line in story.lines("worker", "checking, attempt 2") if line["task_id"] == story.task]
    kept = {
        (event["stage"], event["data"]["attempt"]): event["data"]["log"]
        for event in story.events
        if "log" in event["data"]
    }

    assert [(line["stage"], line["attempt"], line["trace_id"]) for line in said] == [
        ("check", 2, story.answer["trace_id"])
    ]
    assert kept["check", 2][0].endswith(" INFO checking, attempt 2")
    assert kept["left", 1][0].endswith(" INFO left")
    assert ("settle", 1) not in kept


def test_what_happened_is_counted(story: Story) -> None:
    assert story.count("postroad_tasks_accepted_total", pipeline="told") == 4
    assert story.count("postroad_intake_rejected_total", reason="invalid") == 1
    assert story.count("postroad_stage_attempts_total", stage="check", outcome="failed") == 4
    assert story.count("postroad_stage_attempts_total", stage="check", outcome="done") == 4
    assert story.count("postroad_stage_attempts_total", stage="settle", outcome="dead") == 1
    assert story.count("postroad_stage_duration_seconds_count", stage="check") == 8
    assert story.count("postroad_stage_wait_seconds_count", stage="check") == 4, "of first attempts alone"
    assert story.count("postroad_task_latency_seconds_count", status="completed") == 4
    assert story.count("postroad_task_latency_seconds_count", status="failed") == 1
    assert story.count("postroad_relay_published_total", stage="left") >= 4
    assert story.count("postroad_relay_leading") == 1
    assert story.count("postroad_audit_violations") == 0
    assert {dict(labels)["role"] for labels in story.metrics["postroad_build_info"]} == {"intake", "relay", "stage"}


def test_no_label_is_of_an_infinite_set(story: Story) -> None:
    names = {
        name
        for sample, found in story.metrics.items()
        if sample.startswith("postroad_")
        for labels in found
        for name, _ in labels
    }

    assert names <= {
        "pipeline", "stage", "outcome", "reason", "state", "status", "invariant", "role", "version", "python", "le",
    }  # fmt: skip


def test_every_metric_is_served_under_the_name_that_the_documents_have(story: Story) -> None:
    text = (ROOT / "docs/telemetry.md").read_text("utf-8")
    listed = set(re.findall(r"^\| `(postroad_\w+)", text, re.MULTILINE))
    suffixes = re.compile(r"_(bucket|count|sum|created)$")

    ours = {name for name in story.metrics if name.startswith("postroad_")}
    assert {suffixes.sub("", name) for name in ours} == listed


@pytest.mark.parametrize("file", ["deploy/prometheus/alerts.yml", "deploy/grafana/postroad.json"])
def test_what_the_alerts_and_the_dashboard_ask_for_is_served(story: Story, file: str) -> None:
    asked = set(re.findall(r"\bpostroad_\w+", (ROOT / file).read_text("utf-8")))

    assert asked
    assert asked <= story.metrics.keys()


def test_metrics_are_sent_to_a_collector_too(story: Story) -> None:
    assert {"postroad.tasks.accepted", "postroad.outbox.oldest.age"} <= story.collector.metrics
