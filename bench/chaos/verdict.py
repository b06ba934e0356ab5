"""What became of every task that was accepted, and the tables of a run."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.acceptance.deployment import Process

from .app import WITH_EFFECT
from .scene import FAULTS, Scene

PAIR = "two at once"


@dataclass(slots=True)
class Run:
    """What has happened. ``heals`` has the seconds, or ``None`` for each that did not end in time, by the strike."""

    heals: list[tuple[tuple[str, ...], float | None]] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    faulty: list[str] = field(default_factory=list)
    """What went wrong in the harness, or with a process that ended as nobody had told it to."""

    @property
    def stuck(self) -> int:
        """Strikes from which the deployment did not heal in time."""
        return sum(seconds is None for _, seconds in self.heals)

    def rows(self) -> list[dict[str, Any]]:
        """One row for each fault that struck: how often alone and in pairs, and how long it took, alone."""
        rows = []
        for name in FAULTS:
            alone = [seconds for names, seconds in self.heals if names == (name,)]
            paired = sum(name in names for names, _ in self.heals) - len(alone)
            if alone or paired:
                rows.append({"fault": name, "what": FAULTS[name].what, "paired": paired} | _times(alone))
        pairs = [seconds for names, seconds in self.heals if len(names) > 1]
        if pairs:
            rows.append({"fault": PAIR, "what": "of different places", "paired": 0} | _times(pairs))
        return rows


def _times(heals: Sequence[float | None]) -> dict[str, Any]:
    healed = [seconds for seconds in heals if seconds is not None]
    return {
        "struck": len(heals),
        "stuck": len(heals) - len(healed),
        "median": round(statistics.median(healed), 1) if healed else None,
        "longest": round(max(healed), 1) if healed else None,
    }


@dataclass(frozen=True, slots=True)
class Verdict:
    """What Postgres says at the end; all lists are empty if all is well."""

    accepted: int
    statuses: dict[str, int]
    attempts: int
    lost: list[str]
    twice: list[str]
    wrong: list[str]

    @property
    def is_well(self) -> bool:
        """Nothing lost, nothing twice, nothing else that should not be."""
        return not (self.lost or self.twice or self.wrong)


def judge(scene: Scene) -> Verdict:
    """Ask Postgres what became of every task. Everything must have come to its end, as far as it will."""
    accepted = scene.load.accepted
    tasks = dict(scene.query("select task_id::text, status from postroad.task"))
    keys = dict(scene.query("select key, task_id::text from postroad.intake_key"))
    lost = [f"{task} ({key}) is nowhere" for key, task in accepted.items() if task not in tasks]
    lost += [
        f"{key} stands for {keys.get(key)}, not for {task}" for key, task in accepted.items() if keys.get(key) != task
    ]
    lost += [f"{task} is {status}" for task, status in tasks.items() if status in ("pending", "in_progress")]
    effects = scene.query(
        "select task_id::text, stage, count(effect.task_id), coalesce(bool_or(run.status = 'done'), false)"
        "  from effect full join postroad.stage_run as run using (task_id, stage)"
        " where stage = any(%s) group by task_id, stage",
        list(WITH_EFFECT),
    )
    lost += [f"{task} has no effect of {stage}" for task, stage, count, done in effects if done and not count]
    twice = [f"{task} has {count} effects of {stage}" for task, stage, count, _ in effects if count > 1]
    wrong = [f"{task} has an effect of {stage}, not done" for task, stage, count, done in effects if count and not done]
    twice += [f"{task} was accepted by no answer" for task in tasks.keys() - set(accepted.values())]
    wrong += _outcomes(scene, tasks)
    audited = json.loads(scene.deployment.run("audit", "--json", seconds=600).out)
    wrong += [f"audit: {one['violations']} violations: {one['name']}" for one in audited if one["violations"]]
    wrong += scene.load.complaints
    wrong += [line for process in scene.deployment.processes.values() for line in _alarming(process)]
    statuses = {status: sum(one == status for one in tasks.values()) for status in sorted(set(tasks.values()))}
    ((attempts,),) = scene.query("select coalesce(sum(attempts), 0) from postroad.stage_run")
    return Verdict(len(accepted), statuses, attempts, lost, twice, wrong)


def _outcomes(scene: Scene, tasks: dict[str, str]) -> Iterable[str]:
    """The tasks that have an end which they should not have: only those that kill their processes are dead letters."""
    reasons = dict(scene.query("select task_id::text, reason from postroad.dead_letter"))
    for task, status in tasks.items():
        does = scene.load.harmful.get(task)
        expected = "failed" if does == "die" else "completed"
        if status != expected:
            yield f"{task}, which was to {does or 'travel'}, is {status}: {reasons.get(task)}"
        elif does == "die" and not reasons[task].startswith("its worker died"):
            yield f"{task} killed its processes and is a dead letter of another kind: {reasons[task]}"


def _alarming(process: Process) -> list[str]:
    """The lines of a log that no fault of others excuses: errors, and what is no line of ours, as tracebacks are."""
    lines = [line for line in process.whole_log.splitlines() if not line.startswith("{") or '"level": "error"' in line]
    return [f"{process.name}: {line[:1000]}" for line in lines]


def markdown(run: Run, verdict: Verdict, scene: Scene, *, seconds: float, seed: int) -> str:
    """The report."""
    lines = ["| fault | | struck | in pairs | median s | longest s |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    for row in run.rows():
        longest = "STUCK" if row["stuck"] else _number(row["longest"])
        lines.append(
            f"| `{row['fault']}` | {row['what']} | {row['struck']} | {row['paired'] or ''} |"
            f" {_number(row['median'])} | {longest} |"
        )
    load, count = scene.load, sum(verdict.statuses.values())
    ends = ", ".join(f"{number:,} {status}" for status, number in verdict.statuses.items())
    harmful = sum(does == "die" for does in load.harmful.values())
    lines += [
        "",
        f"Seconds to heal with a lease of {scene.lease:g} s, from the end of the fault (of a moment's: from the strike)"
        " until every task that was open then, and one that was accepted later, was terminal.",
        "",
        f"- {verdict.accepted:,} tasks accepted in {seconds:,.0f} s, {count:,} in Postgres: {ends}."
        f" {harmful} of them were to kill their processes",
        f"- {load.repeats:,} requests repeated, {load.replays:,} answered as replays; {verdict.attempts:,} attempts",
        f"- {len(run.heals)} strikes, seed {seed}",
        f"- **{len(verdict.lost)} lost, {len(verdict.twice)} twice, {run.stuck} stuck**",
    ]
    for title, faults in (
        ("lost", verdict.lost), ("twice", verdict.twice), ("wrong", verdict.wrong), ("faulty", run.faulty),
        ("nothing to strike", run.missed),
    ):  # fmt: skip
        if faults:
            lines += ["", f"{title}: {len(faults)}", *(f"- {fault}" for fault in faults[:20])]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
