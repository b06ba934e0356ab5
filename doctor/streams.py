"""Our keys in Redis: markers, streams and their groups, and what is left of others."""

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from ..core.broker import RETRY_CONSUMER, group_name, is_group_missing
from ..outbox.marker import Marker
from ..relay.publish import Shard
from ..relay.route import Lane, Route, Routes
from .finding import Finding, error, listed, many, ok, told, warning
from .patient import Patient
from .processes import alive, stages

LEASES = 2
"""So many leases may a dead consumer keep its entries: within one others take them over, where there are others."""


async def markers(patient: Patient) -> Sequence[Finding]:
    """Whether each shard says how far the outbox was published, and Postgres knows that point."""
    texts = await patient.markers()
    parsed = {shard: Marker.parse(text) for shard, text in texts.items()}
    ticks = [marker.tick for marker in parsed.values() if marker]
    known = {row.tick for row in await patient.rows("known_ticks", tick=ticks)}
    findings = []
    for shard, marker in parsed.items():
        if marker is None:
            what = f"is {texts[shard]!r}, which is none" if texts[shard] else "is missing"
            findings.append(
                error(
                    f"the marker of shard {shard} {what}",
                    "a relay restores it within a second, and asks for all that is ready: see the check relay",
                )
            )
        elif marker.tick not in known:
            findings.append(
                error(
                    f"the marker of shard {shard} names tick {marker.tick}, which Postgres does not know",
                    "see that both URLs are of one deployment; if they are, Postgres was restored, and a"
                    " relay begins anew: see the check relay",
                )
            )
    return findings or [ok(f"{many(len(parsed), 'marker')}, known to Postgres")]


async def groups(patient: Patient) -> Sequence[Finding]:
    """Whether each stage has its streams and their group, and nobody else's group is there."""
    lanes = await _lanes(patient)
    missing: list[Lane] = []
    findings = []
    for shard in patient.keys.shards:
        if shard not in patient.away:
            _, gone = await Shard(shard, patient.keys, patient.client(shard)).inspect(lanes)
            missing += gone
    for name in dict.fromkeys(group_name(lane.pipeline, lane.stage) for lane in missing):
        findings.append(
            error(
                f"the stream of {name}, or its group, is gone: nothing reaches that stage",
                "a relay makes it within a second, and asks for what is ready: see the check relay",
            )
        )
    for lane in lanes:
        if lane in missing or patient.keys.shard_of(lane.pipeline, lane.stage) in patient.away:
            continue
        stream, client = _stream(patient, lane)
        found: Any = await client.xinfo_groups(stream)
        strange = [str(one["name"]) for one in found if one["name"] != group_name(lane.pipeline, lane.stage)]
        if strange:
            findings.append(
                warning(
                    f"{stream} has other groups than ours, which miss what is deleted: {listed(strange)}",
                    f"read the journeys of tasks instead; redis-cli xgroup destroy '{stream}' {strange[0]}",
                )
            )
    return findings or [ok(f"{many(len(lanes), 'stream')}, each with its group")]


async def left_over(patient: Patient) -> Sequence[Finding]:
    """Whether streams are left of stages that are not deployed any more."""
    places = {
        f"{row.pipeline}.{row.stage}": patient.keys.shard_of(row.pipeline, row.stage) for row in await stages(patient)
    }
    found: dict[tuple[int, str], list[str]] = {}
    for key in (await patient.scan()).keys:
        place = patient.stage_key(key)
        if place and place[0] != places.get(place[1]):
            found.setdefault(place, []).append(key)
    return [
        warning(
            f"there {'is' if len(keys) == 1 else 'are'} {many(len(keys), 'key')} of {name}, "
            + (f"a stage that is in shard {places[name]} now" if name in places else "which is no stage in force"),
            f"if it will not come back: redis-cli unlink {' '.join(map(repr, keys))}",
        )
        for (_, name), keys in found.items()
    ] or [ok("no stream is left of a stage that was removed")]


async def unknown_keys(patient: Patient) -> Sequence[Finding]:
    """Whether somebody else writes under our prefix."""
    scan = await patient.scan()
    strange = [key for key in scan.keys if not patient.is_ours(key)]
    if strange:
        return [
            warning(
                f"{many(len(strange), 'key')} of nobody that we know under the prefix {patient.settings.prefix}:"
                f" {listed(strange)}",
                "if another program shares the prefix, give one of them another (POSTROAD_PREFIX)",
            )
        ]
    part = "" if scan.is_whole else ", of those that were looked at: there are many others"
    return [ok(f"{many(len(scan.keys), 'key')}, all known{part}")]


async def dead_consumers(patient: Patient) -> Sequence[Finding]:
    """Whether entries are held by processes that are dead, and nobody takes them over."""
    served = {stage for process in await alive(patient) for stage in process.stages}
    lease = patient.settings.lease.total_seconds()
    findings, held = [], 0
    for lane in await _lanes(patient):
        shard = patient.keys.shard_of(lane.pipeline, lane.stage)
        if shard in patient.away:
            continue
        stream, client = _stream(patient, lane)
        name = group_name(lane.pipeline, lane.stage)
        try:
            summary: Any = await client.xpending(stream, name)
        except ResponseError as problem:
            if is_group_missing(problem):
                continue  # the check groups tells
            raise
        held += int(summary["pending"])
        for consumer in summary["consumers"] or []:
            owner = str(consumer["name"])
            if owner == RETRY_CONSUMER or await client.exists(patient.keys.alive(shard, owner)):
                continue
            page: Any = await client.xpending_range(stream, name, min="-", max="+", count=1, consumername=owner)
            silent = page[0]["time_since_delivered"] / 1000 if page else 0.0
            if silent < LEASES * lease:
                continue
            make, do = (
                (error, "its workers are alive and do not take over: see their logs, and restart them")
                if name in served
                else (warning, f"start a worker of {name}: it takes them over")
            )
            findings.append(
                make(
                    f"{owner}, which is dead, has held {consumer['pending']:,} of {name} for {told(silent)}",
                    do,
                )
            )
    return findings or [ok(f"entries under work, or parked for their retry: {held:,}")]


async def _lanes(patient: Patient) -> list[Lane]:
    rows = await stages(patient)
    return Routes(Route(row.pipeline, row.stage, tuple(row.after), row.priorities) for row in rows).lanes


def _stream(patient: Patient, lane: Lane) -> tuple[str, Any]:
    shard = patient.keys.shard_of(lane.pipeline, lane.stage)
    return patient.keys.stream(lane.pipeline, lane.stage, lane.name), patient.client(shard)
