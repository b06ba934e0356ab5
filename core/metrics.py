"""What is counted and measured: every name of it that shows up outside is here.

Through the API of OpenTelemetry: without an SDK nothing is kept. Labels are pipelines, stages and words of finite sets;
never ids, keys or texts. In Prometheus dots are underscores, counters end in ``_total`` and seconds in ``_seconds``.
"""

import platform
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from threading import Lock

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

METER = "postroad"

COUNTERS = {
    "postroad.tasks.accepted": ("{task}", "Tasks accepted at the door"),
    "postroad.intake.rejected": (
        "{task}",
        "Requests to submit, and lines of batches, that were refused",
    ),
    "postroad.relay.published": ("{entry}", "Entries published to a stage"),
    "postroad.stage.attempts": ("{attempt}", "Attempts that have ended, by their outcome"),
    "postroad.leases.lost": ("{entry}", "Entries taken over from workers that died or fell silent"),
    "postroad.duplicate.deliveries": ("{entry}", "Entries for which there was nothing to do any more"),
    "postroad.limit.wait": ("s", "Time for which a worker that had room waited for the limits of its stage"),
    "postroad.healed": ("{entry}", "Stages asked for again, and entries taken over, after a loss, by the reason"),
}
"""Their units, and what they count."""

HISTOGRAMS = {
    "postroad.stage.duration": ("s", "From the start of an attempt to the commit of its outcome"),
    "postroad.stage.wait": ("s", "From the event that asks for a stage to the start of its first attempt"),
    "postroad.task.latency": ("s", "From the acceptance of a task to its end"),
}

GAUGES = {
    "postroad.build.info": ("", "1; the version of postroad, of Python, and the role of the process"),
    "postroad.relay.leading": ("", "1 in the relay that works; the others wait"),
    "postroad.stage.depth": ("{task}", "Tasks at a stage, by their state; counted up to a limit"),
    "postroad.stage.oldest.ready.age": ("s", "For how long the task has been ready that has been so for longest"),
    "postroad.stage.paused": ("", "1 while people have paused the stage"),
    "postroad.breaker.open": ("", "1 while the stage rests, since its service is away"),
    "postroad.outbox.unpublished": ("{event}", "Events that the relay has not been through; counted up to a limit"),
    "postroad.outbox.oldest.age": ("s", "The age of the oldest of them"),
    "postroad.dead.letters": ("{task}", "Dead letters that nobody has resolved; counted up to a limit"),
    "postroad.dead.letters.oldest.age": ("s", "The age of the oldest of them"),
    "postroad.audit.violations": ("", "Violations of an invariant, when it was looked at last; must be 0"),
}

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)

OUTCOMES = ("done", "failed", "snoozed", "waiting", "dead", "superseded")
"""What an attempt can come to."""

REASONS = (
    "no marker", "no stream", "its marker is of no tick of this server", "another server", "lost entry", "clock",
    "dead worker", "lost reply", "left over",
)  # fmt: skip
"""What can have been lost."""

Labels = Mapping[str, str]


def is_on() -> bool:
    """True if somebody collects metrics: the API's own providers collect nothing."""
    return not type(metrics.get_meter_provider()).__module__.startswith("opentelemetry.metrics.")


def accepted(pipelines: Iterable[str]) -> None:
    """Tasks of these pipelines were accepted, one for each time that one is named."""
    for pipeline in pipelines:
        _counter("postroad.tasks.accepted").add(1, {"pipeline": pipeline})


def rejected(reason: str) -> None:
    """A task was refused at the door; ``reason`` is the kind of the problem."""
    _counter("postroad.intake.rejected").add(1, {"reason": reason.rpartition("#")[2]})


def published(pipeline: str, stage: str, count: int) -> None:
    """So many entries were published to a stage."""
    _counter("postroad.relay.published").add(count, _labels(pipeline, stage))


def attempted(pipeline: str, stage: str, outcome: str, seconds: float) -> None:
    """An attempt has come to ``outcome``, and took so long."""
    _counter("postroad.stage.attempts").add(1, _labels(pipeline, stage, "outcome", outcome))
    _histogram("postroad.stage.duration").record(seconds, _labels(pipeline, stage))


def waited(pipeline: str, stage: str, seconds: float) -> None:
    """A first attempt begins so long after it was asked for."""
    _histogram("postroad.stage.wait").record(max(seconds, 0.0), _labels(pipeline, stage))


def ended(pipeline: str, status: str, seconds: float) -> None:
    """A task has come to its end, so long after it was accepted."""
    _histogram("postroad.task.latency").record(max(seconds, 0.0), {"pipeline": pipeline, "status": status})


def leases_lost(pipeline: str, stage: str, count: int) -> None:
    """So many entries were taken over."""
    _counter("postroad.leases.lost").add(count, _labels(pipeline, stage))


def duplicated(pipeline: str, stage: str, count: int) -> None:
    """So many entries came for which there was nothing to do."""
    _counter("postroad.duplicate.deliveries").add(count, _labels(pipeline, stage))


def limited(pipeline: str, stage: str, seconds: float) -> None:
    """A worker has waited for the limits of its stage."""
    _counter("postroad.limit.wait").add(seconds, _labels(pipeline, stage))


def healed(count: int, reason: str, *, pipeline: str | None = None, stage: str | None = None) -> None:
    """Count ``count`` stages of tasks, or entries, that were put right, and why.

    ``reason`` is one of ``REASONS``, or another of a handful of words.
    """
    if count:
        labels = {"reason": reason, "pipeline": pipeline, "stage": stage}
        _counter("postroad.healed").add(count, {name: value for name, value in labels.items() if value is not None})


def announce_stage(pipeline: str, stage: str) -> None:
    """Begin the counts of a stage at 0: what is not there yet cannot be seen to rise."""
    for outcome in OUTCOMES:
        _counter("postroad.stage.attempts").add(0, _labels(pipeline, stage, "outcome", outcome))
    for count in (leases_lost, duplicated, limited):
        count(pipeline, stage, 0)


def announce_relay() -> None:
    """The same of what a relay counts."""
    for reason in REASONS:
        _counter("postroad.healed").add(0, {"reason": reason})


class Levels:
    """The gauges: what was found when somebody looked last, and nothing once nobody looks any more."""

    def __init__(self) -> None:
        self._levels: dict[str, Sequence[tuple[float, Labels]]] = {}
        self._lock = Lock()
        self._are_made = False

    def show(self, levels: Mapping[str, Sequence[tuple[float, Labels]]]) -> None:
        """Show these from now on, by their names, each with its labels; of the names that are left out, as before."""
        with self._lock:
            self._levels |= levels
            is_first, self._are_made = not self._are_made, True
        if is_first:
            for name, (unit, description) in GAUGES.items():
                _meter().create_observable_gauge(name, [self._reader(name)], unit, description)

    def read(self, name: str) -> Sequence[tuple[float, Labels]]:
        """What is shown under this name."""
        with self._lock:
            return self._levels.get(name, ())

    def clear(self, *names: str) -> None:
        """Show nothing any more of these, or of all."""
        with self._lock:
            for name in names or tuple(self._levels):
                self._levels.pop(name, None)

    def _reader(self, name: str) -> "metrics.CallbackT":
        def read(options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, labels) for value, labels in self.read(name)]

        return read


LEVELS = Levels()
"""Those of this process."""


def build_info(role: str) -> None:
    """Show which version of what runs here."""
    labels = {"version": version("postroad"), "python": platform.python_version(), "role": role}
    LEVELS.show({"postroad.build.info": [(1, labels)]})


@cache
def _labels(pipeline: str, stage: str, name: str = "", value: str = "") -> Labels:
    return {"pipeline": pipeline, "stage": stage} | ({name: value} if name else {})


def _meter() -> metrics.Meter:
    return metrics.get_meter(METER, version("postroad"))


@cache
def _counter(name: str) -> metrics.Counter:
    return _meter().create_counter(name, *COUNTERS[name])


@cache
def _histogram(name: str) -> metrics.Histogram:
    return _meter().create_histogram(name, *HISTOGRAMS[name], explicit_bucket_boundaries_advisory=BUCKETS)
