"""``postroad demo``: the provisioning example under fire."""

import asyncio
import importlib
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy import create_engine

from ..client import AsyncClient
from ..core.database import make_engine, sqlalchemy_url
from ..core.errors import AppError
from ..core.settings import Settings
from ..core.task import Status
from ..intake.lookup import count_tasks
from ..outbox.audit import audit
from .connect import connection
from .stack import Stack, stack
from .submit import Tally
from .supervisor import Log

EXAMPLE = "examples.provisioning"

KILLS = ((0.1, "relay"), (0.3, "provisioning.allocate"), (0.5, "provisioning.launch"))
"""Which process is killed when so large a share of the tasks has finished."""

BATCH = 20
"""Lines in one request: small, so that tasks come in while others are on their way."""


@dataclass(frozen=True, slots=True)
class _Check:
    """One line of the verdict; it holds if ``violations`` is 0."""

    promise: str
    violations: int


@click.command("demo")
@click.option("--tasks", type=click.IntRange(1, 1_000_000), default=1000, show_default=True, help="How many.")
@click.option("--lease", default="3s", show_default=True, help="A worker silent for so long is dead.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the requests.")
@click.option(
    "--log", type=click.Path(path_type=Path), help="Where the processes log. [default: a file beside the data]"
)
def demo_command(tasks: int, lease: str, seed: int, log: Path | None) -> None:
    """Watch tasks travel while processes are killed, on embedded servers.

    Starts Postgres, Valkey, the intake, the relay and a process for each stage of examples/provisioning, submits
    requests over HTTP, kills the relay and two stage workers with SIGKILL meanwhile, and counts what the invariants
    say. Exit code 5 if one does not hold. Leaves nothing behind but its log.
    """
    invariants = _example_invariants()
    with tempfile.TemporaryDirectory(prefix="postroad-demo-") as folder:
        path = log or Path(tempfile.gettempdir()) / "postroad-demo.log"
        path.unlink(missing_ok=True)
        checks = asyncio.run(_demo(tasks, lease, seed, Path(folder), path, invariants))
    click.echo(f"log       {path}", err=True)
    if any(check.violations for check in checks):
        raise click.exceptions.Exit(5)


async def _demo(tasks: int, lease: str, seed: int, folder: Path, log: Path, invariants: Any) -> list[_Check]:
    # Not from the environment: the demo must not touch servers that happen to be named there.
    settings = Settings.read({"app": EXAMPLE, "lease": lease, "port": 0}, environ={})
    sink = Log(path=str(log))
    try:
        async with stack(settings, folder=folder, log=sink, before=f"python -m {EXAMPLE}.migrate") as running:
            click.echo(f"intake    {running.url}/v1/tasks", err=True)
            stages = ", ".join(stage.full_name for stage in running.stages)
            click.echo(f"stages    {stages}, a process each", err=True)
            began = time.monotonic()
            accepted = await _run(running, tasks, seed)
            seconds = time.monotonic() - began
            return await _verdict(running.settings, accepted, seconds, invariants)
    finally:
        sink.close()


async def _run(running: Stack, tasks: int, seed: int) -> int:
    """Submit, kill, and wait until every task is terminal; returns how many were accepted."""
    columns = (
        TextColumn("{task.description:9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as progress:
        submitted = progress.add_task("submitted", total=tasks, note="")
        finished = progress.add_task("finished", total=tasks, note="")
        advance = partial(progress.advance, submitted)
        submitting = asyncio.create_task(_submit(running.url, _requests(tasks, seed), advance))
        kills = list(KILLS)
        async for terminal in _terminal_counts(running.settings):
            progress.update(finished, completed=terminal)
            while kills and terminal >= tasks * kills[0][0]:
                _, name = kills.pop(0)
                pid = running.supervisor.kill(name)
                console.print(f"          kill -9 {pid}: {name}, with {terminal:,} of {tasks:,} tasks finished")
            if submitting.done():
                tally = submitting.result()
                for number, message in tally.refusals.items():
                    console.print(f"          line {number} was refused: {message}")
                if terminal >= tally.accepted:
                    return tally.accepted
    raise AssertionError("unreachable: the counts do not end")


async def _submit(url: str, lines: Iterable[bytes], advance: Callable[[], None]) -> Tally:
    tally = Tally()
    async with AsyncClient(url) as client:
        async for outcome in client.submit_many("provisioning", lines, batch=BATCH):
            tally.count(outcome)
            advance()
    return tally


async def _terminal_counts(settings: Settings) -> AsyncIterator[int]:
    engine = make_engine(settings, application="postroad demo", pool=3)
    try:
        while True:
            async with engine.connect() as opened:
                counts, _ = await count_tasks(opened)
            yield sum(count for status, count in counts.items() if Status(status).is_terminal)
            await asyncio.sleep(0.1)
    finally:
        await engine.dispose()


async def _verdict(settings: Settings, accepted: int, seconds: float, invariants: Any) -> list[_Check]:
    async with connection(settings, isolation="REPEATABLE READ") as opened:
        findings = await audit(opened, settings.schema)
        counts, retries = await count_tasks(opened)
    terminal = sum(count for status, count in counts.items() if Status(status).is_terminal)
    states = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
    checks = [_Check(f"{accepted:,} accepted = {terminal:,} terminal ({states})", abs(accepted - terminal))]
    checks += [_Check(finding.promise, finding.violations) for finding in findings]
    example = await asyncio.to_thread(_example, settings, invariants)
    checks += [_Check(f"provisioning: {name}", count) for name, count in example]
    for check in checks:
        mark = click.style("FAIL", fg="red") if check.violations else click.style("ok  ", fg="green")
        click.echo(f"{mark} {check.promise}" + (f": {check.violations:,} violations" if check.violations else ""))
    click.echo(f"{accepted:,} tasks in {seconds:.1f} s, {retries:,} retries, {len(KILLS)} processes killed")
    return checks


def _example(settings: Settings, invariants: Any) -> list[tuple[str, int]]:
    engine = create_engine(sqlalchemy_url(settings.database_url))
    try:
        with engine.connect() as opened:
            return list(invariants.check(opened))
    finally:
        engine.dispose()


def _example_invariants() -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(f"{EXAMPLE}.invariants")
    except ModuleNotFoundError as error:
        raise AppError(
            "the demo runs in a checkout of postroad: examples/provisioning is not in this folder"
        ) from error


def _requests(tasks: int, seed: int) -> Iterator[bytes]:
    """Requests as users make them: mostly small, a few large, and a few that must be rejected."""
    draw = random.Random(seed)
    for number in range(1, tasks + 1):
        user = f"user{draw.randint(1, 720)}"
        processors = draw.choice((1, 1, 2, 4, 8, 8, 16, 32, 64, 128))
        document = {
            "payload": {"job": number, "user": user, "processors": processors},
            "idempotency_key": f"demo-{number}",
        }
        yield json.dumps(document).encode()
