"""The outbox: that events become old only where nobody is to blame, and that what is old goes."""

from collections.abc import Sequence
from datetime import timedelta

from ..outbox.marker import Marker, earliest
from .finding import Finding, error, listed, many, ok, told, warning
from .patient import Patient

LATE = 30.0
"""Seconds that an event may wait. A relay at work needs some milliseconds; one that hangs is replaced after the lease
and 5 s."""

TICKLESS = 10.0
"""Seconds that an event may wait for a tick: Redis has no part in that, so it is ten looks of a relay that lives."""

COUNTED = 10_000
"""Events that are counted at most."""

LEAF = timedelta(days=5)
"""How long one leaf of the ring is filled."""

PRUNED_LATE = timedelta(days=2)
"""What is to go may stay for so long: prune runs daily, and may fail once."""

LOOKED_AT = 1000
"""Of the oldest tasks: open ones, and those that failed, may stay among them for long."""


async def unpublished(patient: Patient) -> Sequence[Finding]:
    """How old the oldest event is that has not reached Redis."""
    markers = [marker for text in (await patient.markers()).values() if (marker := Marker.parse(text))]
    behind = earliest(markers)
    row = await patient.row(
        "unpublished",
        tick=None if behind is None else behind.tick,
        is_part=behind is not None and behind.is_part,
        limit=COUNTED,
    )
    if row.age is None:
        return [ok("every event has reached Redis")]
    count = many(row.events, "event", is_cut=row.events >= COUNTED)
    saw = f"of {count} not yet in Redis the oldest is {told(max(0.0, row.age))} old"
    if row.age < LATE:
        return [ok(saw)]
    limit = patient.settings.outbox_age_limit.total_seconds()
    if limit and row.age >= limit:
        saw += ": the door accepts nothing"
    return [error(saw, "see the checks relay, redis-role and memory; the log of the relay says what it waits for")]


async def ticks(patient: Patient) -> Sequence[Finding]:
    """Whether the outbox is cut into windows, as a relay does whatever Redis does."""
    row = await patient.row("ticks")
    if not row.is_ours:
        return [
            warning(
                "the newest tick is of another server, or of a later state of this one: the database was restored",
                "start a relay: it begins anew, and asks for all that is ready",
            )
        ]
    if row.waiting is not None and row.waiting >= TICKLESS and row.age >= TICKLESS:
        return [
            error(
                f"an event has waited for {told(row.waiting)}, and the last tick is {told(row.age)} old",
                "see the check relay: none works, or it cannot write to Postgres",
            )
        ]
    if row.age < -TICKLESS:
        return [
            warning(
                f"the newest tick was made {told(-row.age)} from now: the clock of Postgres went back",
                "let it follow a time server; ticks go on, but ages are told wrongly until then",
            )
        ]
    return [ok("events are covered by ticks as they come")]


async def ring(patient: Patient) -> Sequence[Finding]:
    """Whether a leaf is empty before it is filled again."""
    filling, following, *_ = await patient.rows("ring")
    findings = []
    run = "run postroad prune, and from now on daily; its output says which leaves are in use"
    if filling.oldest is not None and filling.oldest > (LEAF + timedelta(days=1)).total_seconds():
        findings.append(
            warning(
                f"leaf {filling.leaf} is being filled, and still has events that are {told(filling.oldest)} old: they"
                " stay for another turn of the ring",
                run,
            )
        )
    if following.newest is not None and following.began > PRUNED_LATE.total_seconds():
        begins = LEAF.total_seconds() - following.began
        findings.append(warning(f"leaf {following.leaf} is not empty, and will be filled again in {told(begins)}", run))
    return findings or [ok(f"leaf {filling.leaf} is being filled, and the next one is ready")]


async def pruning(patient: Patient) -> Sequence[Finding]:
    """Whether what is past its retention goes."""
    retention = patient.settings.retention
    late = retention + LEAF + PRUNED_LATE
    row = await patient.row("pruning", late=late, limit=LOOKED_AT)
    leaves = [
        one.leaf
        for one in await patient.rows("ring")
        if one.newest is not None and one.newest > (retention + PRUNED_LATE).total_seconds()
    ]
    left = [
        many(row.tasks, "finished task", is_cut=row.tasks >= LOOKED_AT) if row.tasks else "",
        f"the outbox in {listed([f'leaf {leaf}' for leaf in leaves])}" if leaves else "",
        "ticks" if row.tick_age is not None and row.tick_age > late.total_seconds() else "",
    ]
    named = " and ".join(filter(None, left))
    if not named:
        return [ok(f"nothing is left that ended {told(retention.total_seconds())} ago")]
    return [
        warning(
            f"{named} ought to be gone, by a retention of {told(retention.total_seconds())}",
            "run postroad prune daily, with the retention that you want",
        )
    ]
