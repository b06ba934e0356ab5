"""The stages: that somebody works on each, that nothing keeps them from it, and what becomes of their tasks."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from ..core.errors import DeclarationError
from ..core.rate import OFF, Rate
from ..intake.pipelines import list_pipelines
from ..outbox.process import INTERVAL, Role
from .finding import Finding, error, listed, many, ok, told, warning
from .patient import Patient
from .processes import alive, stages

PAUSED = 3600.0
"""Seconds: a pause for a repair is over by then, or was forgotten."""

RESTS = 8
"""In a row. Rests grow to 30 s each, so the service behind the stage has been away for some two minutes."""

OLD, ANCIENT = 300.0, 3600.0
"""Seconds for which something has been ready, with workers at hand: a backlog that somebody should know of, and one
that nobody expects to wait for."""

TOO_SLOW = 86400.0
"""Seconds that a rate would take to let through what is ready now."""

DEPTH = 2000
"""Open tasks of a pipeline that are looked at to see what is ready: the oldest, so that the age is right."""

SAMPLE = 10_000
"""Dead letters, the newest, that are looked at."""

BLEEDING, MANY, GROWTH = 1000, 10, 3
"""Dead letters in an hour that are an error whatever the day was like; those from which an hour is told of at all; and
how many times the mean of the day before it must be for that."""

OFTEN = 50
"""Attempts. Five retries are the default; after fifty, with pauses of minutes, it has been days."""

RETRY_LATE = timedelta(minutes=5)
"""A retry is taken up within a second of when it is due, if there is a worker with a free slot."""

SNOOZED = timedelta(days=1)
"""A task that asks to be called again for longer may do so for ever: nothing counts that."""

RETRIES_SEEN = 1000
"""Open tasks of a pipeline that are looked at for retries: the oldest, for what goes on for ever grows old."""


async def workers(patient: Patient) -> Sequence[Finding]:
    """Whether each stage in force has a live process."""
    served = await _served(patient)
    deployed = await stages(patient)
    if not deployed:
        return [warning("no pipeline is deployed", "run postroad deploy APP")]
    idle = [f"{row.pipeline}.{row.stage}" for row in deployed if f"{row.pipeline}.{row.stage}" not in served]
    if not idle:
        return [ok(f"{many(len(deployed), 'stage')}, each with a live process")]
    return [
        error(f"nobody works on {name}", f"start postroad stage {name} --app APP, or remove the stage and deploy")
        for name in idle
    ]


async def undeployed(patient: Patient) -> Sequence[Finding]:
    """Whether processes run stages that are not in force, or were started before the graph that is."""
    deployed = {f"{row.pipeline}.{row.stage}": row for row in await stages(patient)}
    findings = []
    outdated: dict[str, list[str]] = {}
    for process in await alive(patient):
        for name in process.stages:
            row = deployed.get(name)
            if row is None:
                findings.append(
                    error(
                        f"{process.process} runs {name}, which is not in force: nothing will ever come",
                        "run postroad deploy if it is new; end the process if it was removed",
                    )
                )
            elif row.version > 1 and process.started_at < row.deployed_at:
                outdated.setdefault(f"version {row.version} of {row.pipeline}", []).append(process.process)
    findings += [
        warning(
            f"{listed(list(dict.fromkeys(names)))} started before {what} was deployed, and may run older code",
            "restart them",
        )
        for what, names in outdated.items()
    ]
    return findings or [ok("what is run is what was deployed")]


async def heartbeats(patient: Patient) -> Sequence[Finding]:
    """Whether the workers that live in Postgres live in Redis too, and the other way round."""
    rows = [row for row in await alive(patient) if row.role == Role.STAGE]
    findings = []
    for row in rows:
        names = [name.split(".", 1) for name in row.stages]
        needed = {patient.keys.shard_of(*name) for name in names} - set(patient.away)
        # One that has just been killed is in the registry for longer.
        if row.seen < INTERVAL + 1:
            for shard in sorted(needed):
                if not await patient.client(shard).exists(patient.keys.alive(shard, row.process)):
                    findings.append(
                        error(
                            f"{row.process} lives, and its heartbeat does not reach Redis: others take its entries",
                            "see its log; compare its REDIS_URL, prefix and shards with these",
                        )
                    )
    known = {row.process for row in await alive(patient)}
    beating = [key.split(":alive:", 1)[1] for key in (await patient.scan()).keys if ":alive:" in key]
    strange = [name for name in dict.fromkeys(beating) if name not in known]
    recent = {row.process for row in await patient.rows("processes", silence=timedelta())}
    findings += [
        warning(
            f"{name} works, and is not in the registry",
            "see the check grants: it may not write to the table process; or it is of an older version",
        )
        for name in strange
        if name not in recent
    ]
    return findings or [ok(f"heartbeats of {many(len(rows), 'worker')} reach Redis")]


async def paused(patient: Patient) -> Sequence[Finding]:
    """Stages that do nothing because they were told to, or because their service does not answer."""
    findings, briefly = [], []
    for row in await stages(patient):
        name = f"{row.pipeline}.{row.stage}"
        since = f" for {told(row.switched)}" if row.switched is not None else ""
        if row.paused and row.switched_by is None and row.trouble:
            findings.append(
                error(
                    f"{name} paused itself{since}: {row.trouble}",
                    f"mend its service, or deploy without it; then postroad resume {name}",
                )
            )
        elif row.paused and (row.switched is None or row.switched >= PAUSED):
            by = f" by {row.switched_by}" if row.switched_by else ""
            findings.append(warning(f"{name} has been paused{since}{by}", f"postroad resume {name}, if that is over"))
        elif row.paused:
            briefly.append(f"{name} is paused{since}")
        elif row.resting is not None and row.rests >= RESTS:
            findings.append(
                warning(
                    f"{name} rests, for the {row.rests}th time in a row: {row.trouble}",
                    "see to the service behind it; it is tried again by itself",
                )
            )
        elif row.resting is not None:
            briefly.append(f"{name} rests")
    return findings or [ok(listed(briefly) if briefly else "no stage is paused or rests")]


async def limits(patient: Patient) -> Sequence[Finding]:
    """Limits that let next to nothing through."""
    findings = []
    for row in await stages(patient):
        name = f"{row.pipeline}.{row.stage}"
        try:
            if row.rate not in (None, OFF):
                Rate.parse(row.rate, row.burst)
        except DeclarationError as problem:
            findings.append(
                error(f"the rate of {name} is none: {problem}", f"postroad stage set {name} --rate 50/s, or --clear")
            )
    for stage in await _depths(patient):
        name, ready = f"{stage['pipeline']}.{stage['stage']}", stage["ready"]
        try:
            rate = Rate.parse(stage["rate"], stage["burst"]) if stage["rate"] else None
        except DeclarationError:
            continue  # told above
        if rate and ready["count"] / rate.per_second >= TOO_SLOW:
            most = " or more" if ready["capped"] else ""
            findings.append(
                warning(
                    f"{name} lets {rate} begin, and {ready['count']:,}{most} are ready: that takes"
                    f" {told(ready['count'] / rate.per_second)}",
                    f"postroad stage set {name} --rate, or wait",
                )
            )
    return findings or [ok("no limit keeps a stage from its work")]


async def oldest_ready(patient: Patient) -> Sequence[Finding]:
    """Work that has been ready for long while workers are alive."""
    served = await _served(patient)
    rows = {f"{row.pipeline}.{row.stage}": row for row in await stages(patient)}
    findings, oldest = [], 0.0
    for stage in await _depths(patient):
        name, age = f"{stage['pipeline']}.{stage['stage']}", stage["oldest_ready_seconds"] or 0.0
        row = rows.get(name)
        if row is None or row.paused or row.resting is not None or name not in served:
            continue  # other checks tell of those
        oldest = max(oldest, age)
        if age >= OLD:
            count = many(stage["ready"]["count"], "task", is_cut=stage["ready"]["capped"])
            findings.append(
                (error if age >= ANCIENT else warning)(
                    f"of {count} ready for {name} the oldest has waited for {told(age)}",
                    "start more of its processes, raise its limits, or see in its log what keeps it",
                )
            )
    return findings or [ok(f"what is ready has waited for {told(oldest)} at most, where there is a worker")]


async def dead_letters(patient: Patient) -> Sequence[Finding]:
    """Whether dead letters grow: how many in the last hour, against the day before."""
    row = await patient.row("dead_letters", limit=SAMPLE)
    mean = (row.day - row.hour) / 23
    more = " or more" if row.is_cut else ""
    saw = (
        f"{many(row.hour, 'dead letter')} in the last hour, {row.day:,}{more} in a day;"
        f" {row.open:,} of those are unresolved"
    )
    do = "postroad dead groups says what they failed of; mend it, then postroad dead requeue --fingerprint"
    if row.hour >= BLEEDING:
        return [error(saw, do)]
    if row.hour >= MANY and row.hour > GROWTH * mean:
        return [warning(saw, do)]
    return [ok(saw)]


async def retries(patient: Patient) -> Sequence[Finding]:
    """Work that is tried for ever, or is due again and not taken up."""
    served = await _served(patient)
    held = {f"{row.pipeline}.{row.stage}" for row in await stages(patient) if row.paused or row.resting is not None}
    findings = []
    for row in await patient.rows(
        "retries", limit=RETRIES_SEEN, attempts=OFTEN, late=RETRY_LATE, old=SNOOZED
    ):  # fmt: skip
        name = f"{row.pipeline}.{row.stage}"
        if row.often:
            findings.append(
                warning(
                    f"{many(row.often, 'task')} failed {OFTEN} times or more at {name} (one {row.attempts} times)",
                    "give the stage fewer retries, or raise Reject for what will never work; postroad task cancel ID",
                )
            )
        if row.snoozing:
            findings.append(
                warning(
                    f"{name} has asked for {many(row.snoozing, 'task')} to be called again, for more than a day",
                    "see what they wait for; a deadline ends such a wait",
                )
            )
        if row.late and name in served and name not in held:
            findings.append(
                warning(
                    f"retries of {name} ({row.late}) have been due for more than {told(RETRY_LATE.total_seconds())}",
                    "start more of its processes, raise its limits, or see in its log what keeps it",
                )
            )
    return findings or [ok("nothing is tried for ever, and no retry is late")]


async def _served(patient: Patient) -> set[str]:
    return {name for process in await alive(patient) for name in process.stages}


async def _depths(patient: Patient) -> list[dict[str, Any]]:
    """The stages with what is ready at each, each with the name of its pipeline."""

    async def ask() -> list[dict[str, Any]]:
        async with patient.connection() as connection:
            pipelines = await list_pipelines(connection, patient.settings.schema, most=DEPTH)
        return [stage | {"pipeline": one["pipeline"]} for one in pipelines for stage in one["stages"]]

    found: list[dict[str, Any]] = await patient.once("depths", ask)
    return found
