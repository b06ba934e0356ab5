"""``postroad submit``: tasks from NDJSON to the intake, with progress."""

import asyncio
import contextlib
import io
import json
import os
import stat
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import click

from ..client import AsyncClient, Refused, Submitted
from ..client.address import Address
from ..client.batch import LINES
from ..client.new_task import Urgency
from ..core.backoff import Pause
from ..core.errors import AccessError, SettingsError, UnreachableError
from ..core.moment import parse_rfc3339
from ..core.priority import WORDS
from ..core.settings import duration
from .ends import Ends
from .options import options, read_settings

BATCH = 200
"""Lines in one request, and lines read at a time, where they may come slowly: few are to wait for others."""


@dataclass(slots=True)
class Tally:
    """What became of the lines. ``refusals`` holds a message for each refused one, by its number from 1."""

    accepted: int = 0
    replayed: int = 0
    refusals: dict[int, str] = field(default_factory=dict)

    def count(self, outcome: Submitted | Refused) -> None:
        """Take note of what became of a line."""
        if isinstance(outcome, Refused):
            self.refusals[outcome.number] = outcome.message
        else:
            self.accepted += 1
            self.replayed += outcome.is_replay


def _checked_url(context: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        return Address(value).url
    except SettingsError as error:
        raise click.BadParameter(str(error)) from None


FOREVER = "for as long as it takes"
"""What ``--wait`` is without a time."""


def _checked_time(context: click.Context, parameter: click.Parameter, value: str | None) -> str | float | None:
    try:
        return value if value in (None, FOREVER) else duration(value).total_seconds()
    except ValueError as error:
        raise click.BadParameter(f"{error}; without a time write it behind the file") from None


class Outage:
    """Says on stderr why there is a wait: at once, and then every 10 s until the intake is back."""

    def __init__(self, url: str) -> None:
        self._url = Address(url)
        self._lines = Pause()

    def __call__(self, reason: str) -> None:
        if self._lines.is_worth_a_line():
            click.echo(f"waiting for the intake at {self._url}: {reason}", err=True)

    def end(self) -> None:
        """The intake is back."""
        self._lines.reset()


def _checked_moment(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    try:
        return None if value is None else parse_rfc3339(value).isoformat()
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("submit")
@click.argument("pipeline")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, callback=_checked_url, help="The intake.")
@click.option("--patience", default=60.0, show_default=True, help="Seconds to wait for an intake that is away.")
@click.option("--not-before", metavar="MOMENT", callback=_checked_moment, help="Start then: 2026-12-01T10:00:00+01:00.")
@click.option("--deadline", metavar="MOMENT", callback=_checked_moment, help="From then on start no stage of them.")
@click.option("--run", metavar="NAME", help="Go on with a run that ended early, on the same file.")
@click.option(
    "--priority", type=click.Choice(list(WORDS)), help="Of the lines that do not say, if the pipeline has any."
)
@click.option(
    "--wait",
    metavar="[SECONDS]",
    is_flag=False,
    flag_value=FOREVER,
    callback=_checked_time,
    help="Wait until all have ended, for so long at most: 90, or 5m.",
)
@options()
def submit_command(
    pipeline: str,
    file: io.BufferedIOBase,
    url: str,
    patience: float,
    not_before: str | None,
    deadline: str | None,
    priority: Urgency | None,
    run: str | None,
    wait: str | float | None,
    **given: Any,
) -> None:
    """Submit tasks to PIPELINE, a line each: {"payload": …, "idempotency_key"?, "labels"?, "task_id"?}.

    A line may have not_before, deadline and priority of its own too; the options are for those that have none.

    A line with neither an idempotency key nor a task id is given a key made of the run's name and its number, so that
    nothing is accepted twice when a request, or with --run the whole run, is repeated. Prints what became of the
    lines; exit code 1 if any was refused. An intake that requires a key is given that of POSTROAD_API_KEY.

    With --wait it also prints how the tasks have ended, and of a single one the results. Exit code 5 if one failed or
    was cancelled, 75 if one had not ended in time; it goes on.
    """
    key = read_settings(given).api_key
    name = run or uuid.uuid4().hex
    is_terminal = sys.stderr.isatty()
    tally = Tally()
    ends = None if wait is None else Ends()
    outage = Outage(url)
    source: Iterable[bytes] = file
    batch = BATCH
    if isinstance(file, io.BufferedReader):
        batch = LINES if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else BATCH
        # A reader of our own: the interpreter cannot end while a thread waits in that of sys.stdin.
        source = io.BufferedReader(io.FileIO(file.fileno(), closefd=False))

    async def send() -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.completed:,} {task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), disable=not is_terminal) as progress:
            bar = progress.add_task("submitted", total=None)
            async with AsyncClient(url, token=key or None, patience=patience, on_wait=outage) as client:
                outcomes = client.submit_many(
                    pipeline, _lines(source, batch), run=name, batch=batch,
                    not_before=not_before, deadline=deadline, priority=priority,
                )  # fmt: skip
                async with aclosing(outcomes):
                    async for outcome in outcomes:
                        outage.end()
                        tally.count(outcome)
                        if ends is not None and isinstance(outcome, Submitted):
                            ends.expect(outcome)
                        if is_terminal:
                            progress.advance(bar)
                if ends is not None:
                    ended = progress.add_task(f"of {len(ends):,} ended", total=None)
                    await ends.wait(client, wait if isinstance(wait, float) else None, lambda: progress.advance(ended))

    try:
        asyncio.run(send())
    except AccessError as error:
        is_wait = ends is not None and ends.is_waiting
        needed = "that has the scope read, to wait" if is_wait else "that is good"
        reason = f"{Address(url)} answers {error.status}: set POSTROAD_API_KEY to a key {needed}"
        raise click.ClickException(reason) from None
    except (UnreachableError, KeyboardInterrupt):
        if ends is None or not ends.is_waiting:
            click.echo(f"ended early; --run {name} goes on with the same file and doubles nothing", err=True)
        raise
    finally:
        _report(tally, ends)
        if ends is not None and ends.is_waiting:
            ends.tell(str(Address(url)), name)
    if code := (1 if tally.refusals else ends.code if ends is not None else 0):
        raise click.exceptions.Exit(code)


def _report(tally: Tally, ends: Ends | None) -> None:
    for number, message in sorted(tally.refusals.items())[:20]:
        click.echo(f"line {number}: {message}", err=True)
    if len(tally.refusals) > 20:
        click.echo(f"… and {len(tally.refusals) - 20:,} more", err=True)
    counts = {"accepted": tally.accepted, "replayed": tally.replayed, "refused": len(tally.refusals)}
    click.echo(json.dumps(counts if ends is None else counts | ends.counts()))


async def _lines(source: Iterable[bytes], batch: int) -> AsyncIterator[bytes]:
    """The lines of ``source``, which are read in a thread, ``batch`` at a time."""
    lines = iter(source)
    while group := await _aside(lambda: list(islice(lines, batch))):
        for line in group:
            yield line


def _aside(function: Callable[[], list[bytes]]) -> "asyncio.Future[list[bytes]]":
    """Run ``function`` in a thread. Unlike with asyncio.to_thread nobody waits for it at the end: what is read from a
    terminal or a pipe may never come."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[bytes]] = loop.create_future()

    def settle(lines: list[bytes], error: Exception | None) -> None:
        if future.done():
            return
        if error:
            future.set_exception(error)
        else:
            future.set_result(lines)

    def run() -> None:
        lines: list[bytes] = []
        error: Exception | None = None
        try:
            lines = function()
        except Exception as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, lines, error)

    threading.Thread(target=run, daemon=True).start()
    return future
