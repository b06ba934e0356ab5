"""``postroad submit``: tasks from NDJSON to the intake, with progress."""

import asyncio
import io
import itertools
import json
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import click

from ..core.backoff import Pause
from ..core.errors import UnreachableError

BATCH = 200
"""Lines in one request."""

REQUESTS = 4
"""Requests under way at once."""


@dataclass(slots=True)
class Tally:
    """What became of the lines. ``refusals`` holds a message for each refused one, by its number from 1."""

    accepted: int = 0
    replayed: int = 0
    refusals: dict[int, str] = field(default_factory=dict)


@click.command("submit")
@click.argument("pipeline")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="The intake.")
@click.option("--patience", default=60.0, show_default=True, help="Seconds to wait for an intake that is away.")
def submit_command(pipeline: str, file: io.BufferedReader, url: str, patience: float) -> None:
    """Submit tasks to PIPELINE, a line each: {"payload": …, "idempotency_key"?, "labels"?, "task_id"?}.

    A line without an idempotency key is given one for this run, so that nothing is accepted twice when a request is
    repeated. Prints what became of the lines; exit code 1 if any was refused.
    """
    is_terminal = sys.stderr.isatty()

    async def run() -> Tally:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.completed:,} submitted"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), disable=not is_terminal) as progress:
            bar = progress.add_task("submit", total=None)
            return await submit(
                url, pipeline, file, patience=patience, advance=lambda count: progress.advance(bar, count)
            )

    tally = asyncio.run(run())
    for number, message in sorted(tally.refusals.items())[:20]:
        click.echo(f"line {number}: {message}", err=True)
    if len(tally.refusals) > 20:
        click.echo(f"… and {len(tally.refusals) - 20:,} more", err=True)
    counts = {"accepted": tally.accepted, "replayed": tally.replayed, "refused": len(tally.refusals)}
    click.echo(json.dumps(counts))
    if tally.refusals:
        raise click.exceptions.Exit(1)


async def submit(
    url: str,
    pipeline: str,
    source: Iterable[bytes],
    *,
    patience: float = 60,
    batch: int = BATCH,
    advance: Callable[[int], object] = lambda count: None,
) -> Tally:
    """Submit the lines of ``source`` to the intake at ``url``, a few requests at a time.

    A request that fails, or is answered 503, is repeated for ``patience`` seconds; the keys make that safe. Raises
    ``UnreachableError`` after that.
    """
    tally = Tally()
    timeout = aiohttp.ClientTimeout(total=60, connect=5)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        waiting: set[asyncio.Task[None]] = set()
        async for numbered in _batches(_prepared(pipeline, source, tally), batch):
            if len(waiting) >= REQUESTS:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for request in done:
                    request.result()
            sending = _send(session, url, numbered, tally, patience, advance)
            waiting.add(asyncio.create_task(sending))
        for request in waiting:
            await request
    return tally


def _prepared(pipeline: str, source: Iterable[bytes], tally: Tally) -> Iterator[tuple[int, bytes]]:
    """The lines with their pipeline and a key; those that are no JSON objects are refused here."""
    run = uuid.uuid4().hex
    for number, line in enumerate(source, start=1):
        if not line.strip():
            continue
        try:
            document: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            tally.refusals[number] = f"no JSON: {error}"
            continue
        if not isinstance(document, dict):
            tally.refusals[number] = "not an object with the member payload"
            continue
        document["pipeline"] = pipeline
        document.setdefault("idempotency_key", f"submit-{run}-{number}")
        yield number, json.dumps(document, separators=(",", ":")).encode()


async def _batches(lines: Iterator[tuple[int, bytes]], size: int) -> AsyncIterator[list[tuple[int, bytes]]]:
    """Groups of ``size`` lines. Reading may block: a pipe that is slow to fill must not hold up what is under way."""
    while True:
        group = await asyncio.to_thread(lambda: list(itertools.islice(lines, size)))
        if group:
            yield group
        if len(group) < size:
            return


async def _send(
    session: aiohttp.ClientSession,
    url: str,
    numbered: list[tuple[int, bytes]],
    tally: Tally,
    patience: float,
    advance: Callable[[int], object],
) -> None:
    body = b"\n".join(line for _, line in numbered)
    answers = await _post(session, url, body, patience)
    for (number, _), answer in zip(numbered, answers, strict=True):
        if answer["status"] == 202:
            tally.accepted += 1
            tally.replayed += bool(answer.get("replayed"))
        else:
            tally.refusals[number] = _message(answer)
    advance(len(numbered))


async def _post(session: aiohttp.ClientSession, url: str, body: bytes, patience: float) -> list[dict[str, Any]]:
    pause = Pause()
    deadline = asyncio.get_running_loop().time() + patience
    while True:
        try:
            headers = {"Content-Type": "application/x-ndjson"}
            async with session.post(f"{url}/v1/tasks:batch", data=body, headers=headers) as answer:
                text = await answer.text()
                if answer.status == 200:
                    return [json.loads(line) for line in text.splitlines()]
                reason = f"{answer.status} {text[:300]}"
                if answer.status not in (429, 502, 503, 504):
                    raise click.ClickException(f"{url} answers {reason}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
        if asyncio.get_running_loop().time() > deadline:
            raise UnreachableError(f"the intake at {url}", reason)
        await asyncio.sleep(pause.next())


def _message(answer: dict[str, Any]) -> str:
    faults = [f"{fault['pointer'].removeprefix('#')}: {fault['detail']}" for fault in answer.get("errors", ())]
    return "; ".join(faults) or str(answer.get("detail", answer))
