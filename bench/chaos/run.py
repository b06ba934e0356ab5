"""The run: servers, processes, load, one strike after the other, and the verdict."""

import json
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import psycopg

from tests.acceptance.deployment import Deployment, tails

from ..bed import Bed, bed
from .app import EFFECT_TABLE, WORKERS
from .faults.postgres import OPTIONS, Burden
from .heal import evidence, heal
from .load import Load
from .scene import FAULTS, RELAYS, Ended, Fault, Missed, Scene, Strike, schedule
from .verdict import Run, judge, markdown

LIMIT = 120.0
"""Seconds after which what has not healed is stuck, if ``LEASES`` are not longer."""

LEASES = 10
"""A task that kills its workers outlives five of them, each for a lease and a while."""

PROGRESS = 10.0
"""Seconds between two lines of progress."""

REVIVAL = 0.2
"""Seconds between two looks of the supervisor at what has ended."""

EXPECTED_CODES = (0, -9)
"""Processes end as they were told to, or by SIGKILL."""


def listing() -> str:
    """All faults, a line each."""
    width = max(map(len, FAULTS))
    return "\n".join(f"{one.name:{width}}  {one.what}" for one in FAULTS.values())


def chosen(names: Sequence[str]) -> list[tuple[Fault, ...]]:
    """The faults of these names, ``A+B`` for two at once. Raises ``SystemExit`` for an unknown one."""
    unknown = {name for pair in names for name in pair.split("+")} - FAULTS.keys()
    if unknown:
        raise SystemExit(f"no such fault: {', '.join(sorted(unknown))}; there are\n{listing()}")
    return [tuple(FAULTS[name] for name in pair.split("+")) for pair in names]


def run(*, seconds: float, seed: int, lease: float, only: Sequence[str], report: Path | None) -> int:
    """Strike for ``seconds``, print the report, write it to the file ``report`` as JSON. Returns 0, 5 if a check fails,
    or 130 if it was interrupted."""
    wanted = chosen(only)
    print(f"seed {seed}", file=sys.stderr)
    try:
        with bed(OPTIONS) as servers, _scene(servers, lease, seed) as scene:
            return _run(scene, schedule(seed, wanted), seconds=seconds, seed=seed, report=report)
    except KeyboardInterrupt:
        return 130


def _run(scene: Scene, strikes: Iterator[Strike], *, seconds: float, seed: int, report: Path | None) -> int:
    made = Run()
    with Burden(scene.deployment.settings.database_url):
        began = time.monotonic()
        with _supervised(scene.deployment, made), _progress(scene, made):
            _strike_on(scene, made, strikes, until=began + seconds)
            scene.load.finish()
            struck_for = time.monotonic() - began
            if _wait_for_all(scene) is None:
                made.faulty.append("at the end there are tasks that are not terminal")
        verdict = judge(scene)
    print(markdown(made, verdict, scene, seconds=struck_for, seed=seed))
    if report is not None:
        document = {"seed": seed, "lease": scene.lease, "seconds": struck_for, "faults": made.rows()}
        document |= {"run": asdict(made), "verdict": asdict(verdict)}
        report.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if verdict.is_well and not made.stuck and not made.faulty else 5


@contextmanager
def _scene(servers: Bed, lease: float, seed: int) -> Iterator[Scene]:
    """Processes and load; both are gone afterwards."""
    deployment = servers.deployment("bench.chaos.app", lease=timedelta(seconds=lease))
    deployment.execute(EFFECT_TABLE)
    try:
        for name in RELAYS:
            deployment.relay(name)
        for name, stages in WORKERS.items():
            deployment.stage(*(f"parcel.{stage}" for stage in stages), name=name)
        deployment.serve()
        load = Load(deployment, seed)
        scene = Scene(deployment, servers.postgres, servers.valkey, load, lease, max(LIMIT, LEASES * lease))
        load.start()
        try:
            yield scene
        finally:
            scene.ending.set()
            load.abandon()
    finally:
        deployment.close()


def _strike_on(scene: Scene, made: Run, strikes: Iterator[Strike], *, until: float) -> None:
    given_up: set[str] = set()
    with ThreadPoolExecutor(2) as threads:
        try:
            while time.monotonic() < until:
                strike = next(strikes)
                draw = random.Random(strike.seed)
                scene.hold(draw.uniform(0.2, 1))
                draws = [random.Random(f"{strike.seed}/{fault.name}") for fault in strike.faults]
                futures = [threads.submit(_strike, scene, made, *one) for one in zip(strike.faults, draws, strict=True)]
                struck = [fault.name for fault, future in zip(strike.faults, futures, strict=True) if future.result()]
                if not struck:
                    continue
                known = set(given_up)
                seconds = heal(scene, given_up)
                made.heals.append((tuple(struck), seconds))
                if seconds is None:
                    print(f"STUCK after {'+'.join(struck)}", file=sys.stderr)
                    evidence(scene, given_up - known)
        except BaseException:
            scene.ending.set()  # before the threads are waited for
            raise


def _strike(scene: Scene, made: Run, fault: Fault, draw: random.Random) -> bool:
    """Do harm; whether there was something to strike. What else goes wrong is noted."""
    try:
        fault.strike(scene, draw)
    except Missed as missed:
        made.missed.append(f"{fault.name}: {missed}")
    except Ended:
        raise
    except Exception:
        made.faulty.append(f"{fault.name}: {traceback.format_exc(limit=-3)}")
    else:
        return True
    return False


def _wait_for_all(scene: Scene) -> float | None:
    """Seconds until no task is open, or ``None`` if some still are at the limit; nothing new comes any more."""
    began = time.monotonic()
    while time.monotonic() - began < scene.limit:
        try:
            if not scene.query("select from postroad.task where status in ('pending', 'in_progress') limit 1"):
                return time.monotonic() - began
        except psycopg.Error:
            pass
        scene.hold(0.1)
    rows = scene.query("select task_id::text from postroad.task where status in ('pending', 'in_progress')")
    evidence(scene, {task_id for (task_id,) in rows})
    return None


@contextmanager
def _supervised(deployment: Deployment, made: Run) -> Iterator[None]:
    """Start again what has ended, and note what should not have."""

    def look() -> None:
        for process in deployment.processes.values():
            if process.code not in (None, *EXPECTED_CODES):
                made.faulty.append(f"{process.name} ended with {process.code}")
                print(tails([process]), file=sys.stderr)
        deployment.revive()

    with _repeated(look, REVIVAL):
        yield


@contextmanager
def _progress(scene: Scene, made: Run) -> Iterator[None]:
    began = time.monotonic()

    def line() -> None:
        last = "+".join(made.heals[-1][0]) if made.heals else ""
        print(
            f"{time.monotonic() - began:5.0f} s  {len(scene.load.accepted):,} accepted, {len(made.heals)} strikes,"
            f" {made.stuck} stuck; last: {last}",
            file=sys.stderr,
            flush=True,
        )

    with _repeated(line, PROGRESS):
        yield


@contextmanager
def _repeated(work: Callable[[], None], seconds: float) -> Iterator[None]:
    """Do ``work`` every so often, in a thread, for the length of the block."""
    ending = threading.Event()

    def repeat() -> None:
        while not ending.wait(seconds):
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
