"""What is counted and measured: every name of it that shows up outside is here.

Through the API of OpenTelemetry: without an SDK nothing is kept. Labels are pipelines, stages and words of finite sets;
never ids, keys or texts. In Prometheus dots are underscores, counters end in ``_total`` and seconds in ``_seconds``.
"""

import platform
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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

Key = tuple[tuple[str, str], ...]
"""Labels, as the key of a count."""


def is_on() -> bool:
    """True if somebody collects metrics: the API's own providers collect nothing."""
    return not type(metrics.get_meter_provider()).__module__.startswith("opentelemetry.metrics.")


def accepted(pipelines: Iterable[str]) -> None:
    """Tasks of these pipelines were accepted, one for each time that one is named."""
    for pipeline in pipelines:
        COUNTS.add("postroad.tasks.accepted", 1, _labels(pipeline=pipeline))


def rejected(reason: str) -> None:
    """A task was refused at the door; ``reason`` is the kind of the problem."""
    COUNTS.add("postroad.intake.rejected", 1, _labels(reason=reason.rpartition("#")[2]))


def published(pipeline: str, stage: str, count: int) -> None:
    """So many entries were published to a stage."""
    COUNTS.add("postroad.relay.published", count, _labels(pipeline=pipeline, stage=stage))


def attempted(pipeline: str, stage: str, outcome: str, seconds: float) -> None:
    """An attempt has come to ``outcome``, and took so long."""
    COUNTS.add("postroad.stage.attempts", 1, _labels(pipeline=pipeline, stage=stage, outcome=outcome))
    DISTRIBUTIONS.add("postroad.stage.duration", seconds, _labels(pipeline=pipeline, stage=stage))


def waited(pipeline: str, stage: str, seconds: float) -> None:
    """A first attempt begins so long after it was asked for."""
    DISTRIBUTIONS.add("postroad.stage.wait", max(seconds, 0.0), _labels(pipeline=pipeline, stage=stage))


def ended(pipeline: str, status: str, seconds: float) -> None:
    """A task has come to its end, so long after it was accepted."""
    DISTRIBUTIONS.add("postroad.task.latency", max(seconds, 0.0), _labels(pipeline=pipeline, status=status))


def leases_lost(pipeline: str, stage: str, count: int) -> None:
    """So many entries were taken over."""
    COUNTS.add("postroad.leases.lost", count, _labels(pipeline=pipeline, stage=stage))


def duplicated(pipeline: str, stage: str, count: int) -> None:
    """So many entries came for which there was nothing to do."""
    COUNTS.add("postroad.duplicate.deliveries", count, _labels(pipeline=pipeline, stage=stage))


def limited(pipeline: str, stage: str, seconds: float) -> None:
    """A worker has waited for the limits of its stage."""
    COUNTS.add("postroad.limit.wait", seconds, _labels(pipeline=pipeline, stage=stage))


def healed(count: int, reason: str, *, pipeline: str | None = None, stage: str | None = None) -> None:
    """Count ``count`` stages of tasks, or entries, that were put right, and why.

    ``reason`` is one of ``REASONS``, or another of a handful of words.
    """
    if count:
        where = {} if pipeline is None or stage is None else {"pipeline": pipeline, "stage": stage}
        COUNTS.add("postroad.healed", count, _labels(reason=reason, **where))


def announce_stage(pipeline: str, stage: str) -> None:
    """Begin the counts of a stage at 0: what is not there yet cannot be seen to rise."""
    for outcome in OUTCOMES:
        COUNTS.add("postroad.stage.attempts", 0, _labels(pipeline=pipeline, stage=stage, outcome=outcome))
    for count in (leases_lost, duplicated, limited):
        count(pipeline, stage, 0)


def announce_relay() -> None:
    """The same of what a relay counts."""
    for reason in REASONS:
        COUNTS.add("postroad.healed", 0, _labels(reason=reason))


@dataclass(frozen=True, slots=True)
class Distribution:
    """How many values fell into each of ``BUCKETS``, and beyond the last, of those with these labels."""

    labels: Labels
    counts: list[int]
    sum: float
    least: float
    most: float


_SUM, _LEAST, _MOST = (len(BUCKETS) + place for place in (1, 2, 3))


class Counts:
    """The counters. They are added up here, and read by whoever collects them: of OpenTelemetry's own counters each
    step takes as long as much of the work that is counted. For one thread at a time."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[Key, float]] = {name: {} for name in COUNTERS}
        self._are_made = False

    def add(self, name: str, amount: float, key: Key) -> None:
        """Add to a counter."""
        if not self._are_made:
            self._are_made = True
            for counter, (unit, description) in COUNTERS.items():
                _meter().create_observable_counter(counter, [self._reader(counter)], unit, description)
        counts = self._counts[name]
        counts[key] = counts.get(key, 0) + amount

    def _reader(self, name: str) -> "metrics.CallbackT":
        def read(options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, dict(key)) for key, value in self._counts[name].copy().items()]

        return read


COUNTS = Counts()
"""Those of this process."""


class Distributions:
    """The histograms. They may be added up here like the counters; but OpenTelemetry has none that are only read.

    So who sets up an SDK of ours says ``add_up``, and puts what ``read`` returns into what is collected. Until then,
    and so with an SDK of the author's, everything is handed to OpenTelemetry's own, which takes ten times as long.
    """

    def __init__(self) -> None:
        self._found: dict[str, dict[Key, list[float]]] | None = None

    def add_up(self) -> None:
        """From now on add up here."""
        self._found = {name: {} for name in HISTOGRAMS}

    def add(self, name: str, value: float, key: Key) -> None:
        """Add a value to a histogram."""
        if self._found is None:
            _histogram(name).record(value, dict(key))
            return
        found = self._found[name].get(key)
        if found is None:
            found = self._found[name][key] = [0] * (len(BUCKETS) + 1) + [0.0, value, value]
        found[bisect_left(BUCKETS, value)] += 1
        found[_SUM] += value
        found[_LEAST] = min(found[_LEAST], value)
        found[_MOST] = max(found[_MOST], value)

    def read(self) -> dict[str, list[Distribution]]:
        """What was added up, by the names; nothing unless it is done here."""
        return {
            name: [
                Distribution(dict(key), [int(count) for count in values[:_SUM]], *values[_SUM:])
                for key, values in [(key, found.copy()) for key, found in by_key.copy().items()]
            ]
            for name, by_key in (self._found or {}).items()
        }


DISTRIBUTIONS = Distributions()
"""Those of this process."""


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
def _labels(**labels: str) -> Key:
    return tuple(labels.items())


def _meter() -> metrics.Meter:
    return metrics.get_meter(METER, version("postroad"))


@cache
def _histogram(name: str) -> metrics.Histogram:
    return _meter().create_histogram(name, *HISTOGRAMS[name], explicit_bucket_boundaries_advisory=BUCKETS)
