"""Redis as a server, or the servers of a cluster: that it answers, takes writes, and keeps what it was given."""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from ..core.broker import told as redis_told
from ..core.settings import masked
from .finding import Finding, error, listed, many, ok, told_bytes, unknown, warning
from .patient import PATIENCE, Node, Patient

NEARLY_FULL, FULL = 0.8, 0.95
"""Parts of maxmemory. When it is full nothing is published; a backlog fills the last fifth within minutes."""

LARGE_PART = 0.6
"""The part of the machine's memory, where there is no maxmemory: writing all to disk may take as much again."""

SLOW = 0.05
"""Seconds: our scripts take a millisecond or two, and for as long as one runs nobody else is served."""

RECENT = 3600.0
"""Seconds: what was slow before is history."""


async def answers(patient: Patient) -> Sequence[Finding]:
    """Whether each shard answers."""
    where = f"Redis at {masked(patient.settings.redis_url)}"
    do = "start it, or correct REDIS_URL; tasks are accepted meanwhile, and nothing is lost"
    try:
        async with asyncio.timeout(PATIENCE):
            nodes = await patient.nodes()
            for node in nodes:
                await node.client.ping()
    except Exception as problem:
        patient.away = dict.fromkeys(patient.keys.shards, "")
        return [error(f"{where} does not answer: {_reason(problem)}", do)]
    if patient.away:
        shards = listed([str(shard) for shard in sorted(patient.away)])
        return [error(f"shards {shards} do not answer: {next(iter(patient.away.values()))}", do)]
    return [ok(f"{where} answers" + (f", {len(nodes)} masters" if patient.is_cluster else ""))]


async def role(patient: Patient) -> Sequence[Finding]:
    """Whether it takes writes."""
    findings = []
    for node, info in await _infos(patient):
        if info.get("role") == "slave":
            findings.append(
                error(
                    f"{_name(patient, node)}is a replica: it takes no writes",
                    "name the master, or the sentinels (redis+sentinel://), in REDIS_URL",
                )
            )
        if info.get("loading"):
            findings.append(warning(f"{_name(patient, node)}is loading its data", "wait; the processes do"))
    return findings or [ok("Redis takes writes")]


async def persistence(patient: Patient) -> Sequence[Finding]:
    """Whether it would come back with what it holds. If not, all that is ready is asked for again."""
    findings = []
    for node, info in await _infos(patient):
        name = _name(patient, node)
        if info.get("rdb_last_bgsave_status", "ok") != "ok" or info.get("aof_last_write_status", "ok") != "ok":
            findings.append(
                error(f"{name}cannot write to its disk, and may refuse writes", "see its log; make room on its disk")
            )
        elif not info.get("aof_enabled"):
            try:
                schedule = (await node.client.config_get("save")).get("save", "")
            except (NoPermissionError, ResponseError) as problem:
                findings.append(
                    unknown(
                        f"{name}has no append-only file, and does not say whether it takes snapshots: {problem}",
                        "allow +config|get, or look by hand",
                    )
                )
                continue
            if not schedule:
                findings.append(
                    warning(
                        f"{name}keeps nothing on disk: after a restart everything open is asked for again",
                        "set appendonly to yes, which spares the rebuild; nothing is lost without it",
                    )
                )
    return findings or [ok("Redis keeps its data on disk")]


async def eviction(patient: Patient) -> Sequence[Finding]:
    """Whether it throws streams away when it is full."""
    findings = []
    for node, info in await _infos(patient):
        policy = str(info.get("maxmemory_policy", ""))
        if not policy:
            findings.append(
                unknown(f"{_name(patient, node)}does not say its eviction policy", "it should be noeviction")
            )
        elif policy != "noeviction" and not policy.startswith("volatile-"):
            limit = int(info.get("maxmemory", 0))
            when = f"of {told_bytes(limit)} " if limit else ""
            findings.append(
                (error if limit else warning)(
                    f"{_name(patient, node)}evicts by {policy}: when its memory {when}is full it drops whole streams,"
                    " and what is in them is asked for again and again",
                    "config set maxmemory-policy noeviction, and write it into its configuration",
                )
            )
    return findings or [ok("Redis drops nothing that cannot be spared")]


async def memory(patient: Patient) -> Sequence[Finding]:
    """How full it is."""
    findings, seen = [], []
    for node, info in await _infos(patient):
        used, limit = int(info["used_memory"]), int(info.get("maxmemory", 0))
        machine = int(info.get("total_system_memory", 0))
        name, do = (
            _name(patient, node),
            "see what waits (postroad doctor, oldest-ready); start workers; or raise maxmemory",
        )
        if limit:
            seen.append(f"{name}uses {told_bytes(used)} of {told_bytes(limit)}")
            if used >= NEARLY_FULL * limit:
                findings.append((error if used >= FULL * limit else warning)(seen[-1], do))
        else:
            seen.append(f"{name}uses {told_bytes(used)}, without a limit")
            if machine and used >= LARGE_PART * machine:
                findings.append(warning(f"{seen[-1]}, of the machine's {told_bytes(machine)}", f"set maxmemory; {do}"))
    return findings or [ok("; ".join(seen))]


async def shards(patient: Patient) -> Sequence[Finding]:
    """Whether it is one server or a cluster, as the settings say, and every process spreads the stages alike."""
    findings = []
    for node, info in await _infos(patient):
        if info.get("cluster_enabled") and not patient.is_cluster:
            findings.append(
                error(
                    "this is a node of a cluster, and REDIS_URL names a single server",
                    "name it as redis+cluster://host:6379, and set shards to a few times the number of masters",
                )
            )
        if patient.is_cluster:
            masters = int((await node.client.execute_command("CLUSTER INFO")).get("cluster_size", 1))  # type: ignore[no-untyped-call]
            if len(patient.keys.shards) < masters:
                findings.append(
                    warning(
                        f"{many(len(patient.keys.shards), 'shard')} for {masters} masters: some have nothing to do",
                        "set shards to a few times the number of masters, for every process at once",
                    )
                )
                break
    beyond = {shard for shard in map(patient.shard_in, (await patient.scan()).keys) if shard is not None}
    beyond -= set(patient.keys.shards)
    if beyond:
        findings.append(
            error(
                f"there are keys of shard {max(beyond)}, and shards is {len(patient.keys.shards)}: another process has"
                " another number, or had",
                "give every process the same shards; if the number was lowered, delete the keys that are left",
            )
        )
    return findings or [ok(f"{many(len(patient.keys.shards), 'shard')}, as configured")]


async def slow_scripts(patient: Patient) -> Sequence[Finding]:
    """Whether scripts of ours have kept it waiting."""
    findings = []
    for node in await patient.nodes():
        now = (await node.client.time())[0]
        slow = [
            entry["duration"] / 1e6
            for entry in await node.client.slowlog_get(128)
            if now - entry["start_time"] < RECENT
            and entry["duration"] >= SLOW * 1e6
            and "eval" in _text(entry["command"]).lower()
            and f"{patient.settings.prefix}:{{" in _text(entry["command"])
        ]
        if slow:
            findings.append(
                warning(
                    f"{_name(patient, node)}ran {many(len(slow), 'script')} of ours in the last hour for longer than"
                    f" {SLOW * 1000:.0f} ms, the slowest {max(slow) * 1000:.0f} ms",
                    "see what keeps it busy (slowlog get, latency doctor): large keys of others, swap, a fork",
                )
            )
    return findings or [ok("no script of ours was slow in the last hour")]


async def _infos(patient: Patient) -> list[tuple[Node, dict[str, Any]]]:
    return [(node, await patient.info(node)) for node in await patient.nodes()]


def _name(patient: Patient, node: Node) -> str:
    """Which server a sentence is about, where there are several."""
    return f"the master of shard {node.shards[0]} " if patient.is_cluster else "Redis "


def _text(command: Any) -> str:
    return command.decode("utf-8", "replace") if isinstance(command, bytes) else str(command)


def _reason(problem: Exception) -> str:
    return f"nothing came within {PATIENCE:.0f} s" if isinstance(problem, TimeoutError) else redis_told(problem)
