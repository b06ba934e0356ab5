"""``postroad submit``: tasks from NDJSON to the intake, with progress."""

import asyncio
import contextlib
import io
import json
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import click

from ..core.backoff import Pause
from ..core.errors import UnreachableError, UnstorableError
from ..core.jsontext import decode
from ..core.moment import parse_rfc3339
from ..core.priority import WORDS
from .options import options, read_settings

BATCH = 200
"""Lines in one request."""

BATCH_BYTES = 4 * 1024 * 1024
"""A request that has come to so many bytes takes no more lines: a quarter of what the intake accepts by default."""

REQUESTS = 4
"""Requests under way at once."""

LATER = (429, 503)
"""What becomes of a line that is to be sent again."""

Lines = list[tuple[int, bytes]]
"""Lines as they are sent, each with its number in the source."""


@dataclass(slots=True)
class Tally:
    """What became of the lines. ``refusals`` holds a message for each refused one, by its number from 1."""

    accepted: int = 0
    replayed: int = 0
    refusals: dict[int, str] = field(default_factory=dict)

    def count(self, number: int, answer: dict[str, Any]) -> None:
        """Take note of the intake's answer to a line."""
        if answer["status"] == 202:
            self.accepted += 1
            self.replayed += bool(answer.get("replayed"))
        else:
            self.refusals[number] = _message(answer)


def _checked_url(context: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        parts = urlsplit(value)
        is_url = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise click.BadParameter(f"{value!r} is not of the form http://host:port")
    return value.rstrip("/")


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
@options()
def submit_command(
    pipeline: str,
    file: io.BufferedIOBase,
    url: str,
    patience: float,
    not_before: str | None,
    deadline: str | None,
    priority: str | None,
    run: str | None,
    **given: Any,
) -> None:
    """Submit tasks to PIPELINE, a line each: {"payload": …, "idempotency_key"?, "labels"?, "task_id"?}.

    A line may have not_before, deadline and priority of its own too; the options are for those that have none.

    A line with neither an idempotency key nor a task id is given a key made of the run's name and its number, so that
    nothing is accepted twice when a request, or with --run the whole run, is repeated. Prints what became of the
    lines; exit code 1 if any was refused. An intake that requires a key is given that of POSTROAD_API_KEY.
    """
    key = read_settings(given).api_key
    name = run or uuid.uuid4().hex
    is_terminal = sys.stderr.isatty()
    tally = Tally()
    source: Iterable[bytes] = file
    if isinstance(file, io.BufferedReader):
        # A reader of our own: the interpreter cannot end while a thread waits in that of sys.stdin.
        source = io.BufferedReader(io.FileIO(file.fileno(), closefd=False))

    async def send() -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.completed:,} submitted"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), disable=not is_terminal) as progress:
            bar = progress.add_task("submit", total=None)
            await submit(
                url, pipeline, source, run=name, patience=patience, tally=tally, key=key,
                defaults={"not_before": not_before, "deadline": deadline, "priority": priority},
                advance=lambda count: progress.advance(bar, count),
            )  # fmt: skip

    try:
        asyncio.run(send())
    except (UnreachableError, KeyboardInterrupt):
        click.echo(f"ended early; --run {name} goes on with the same file and doubles nothing", err=True)
        raise
    finally:
        _report(tally)
    if tally.refusals:
        raise click.exceptions.Exit(1)


def _report(tally: Tally) -> None:
    for number, message in sorted(tally.refusals.items())[:20]:
        click.echo(f"line {number}: {message}", err=True)
    if len(tally.refusals) > 20:
        click.echo(f"… and {len(tally.refusals) - 20:,} more", err=True)
    counts = {"accepted": tally.accepted, "replayed": tally.replayed, "refused": len(tally.refusals)}
    click.echo(json.dumps(counts))


async def submit(
    url: str,
    pipeline: str,
    source: Iterable[bytes],
    *,
    run: str | None = None,
    patience: float = 60,
    batch: int = BATCH,
    tally: Tally | None = None,
    key: str = "",
    defaults: Mapping[str, str | None] | None = None,
    advance: Callable[[int], object] = lambda count: None,
) -> Tally:
    """Submit the lines of ``source`` to the intake at ``url``, a few requests at a time.

    A request that fails, or is answered 503, is repeated for ``patience`` seconds; the keys make that safe, and with
    the same ``run`` the whole is safe to repeat. So is a line, or a request, that comes too fast (429). ``key`` is that
    of the door, if it needs one. ``defaults`` are members for lines that lack them. ``tally`` is kept
    while answers come in. Raises ``UnreachableError`` when patience is at its end.
    """
    tally = Tally() if tally is None else tally
    places = asyncio.Semaphore(REQUESTS)
    timeout = aiohttp.ClientTimeout(total=60, connect=5)

    async def send(lines: Lines) -> None:
        try:
            for (number, _), answer in zip(lines, await intake.submit(lines), strict=True):
                tally.count(number, answer)
            advance(len(lines))
        finally:
            places.release()

    login = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(timeout=timeout, headers=login) as session:
        intake = _Intake(session, url, patience)
        lines_to_send = _prepared(pipeline, source, tally, run or uuid.uuid4().hex, defaults or {})
        try:
            async with asyncio.TaskGroup() as requests:
                async for lines in _batches(lines_to_send, batch):
                    await places.acquire()
                    requests.create_task(send(lines))
        except BaseExceptionGroup as failed:
            # The first one cancelled the others.
            raise failed.exceptions[0] from None
    return tally


class _Intake:
    """The other end: asked again while it is away, and in parts if a request is too large for it."""

    def __init__(self, session: aiohttp.ClientSession, url: str, patience: float) -> None:
        self._session = session
        self._url = url
        self._patience = patience
        self._outage = Pause()
        self._after = 0.0
        """What the last answer said of when to come again."""

    async def submit(self, lines: Lines) -> list[dict[str, Any]]:
        """The answer to each of ``lines``; those that came too fast are sent again."""
        answers = await self._submit(lines)
        patience = _Patience(self._patience)
        while later := [place for place, answer in enumerate(answers) if answer["status"] in LATER]:
            told = answers[later[0]]
            await self._wait(patience, f"{told['status']} {told.get('detail', '')}", self._after)
            again = await self._submit([lines[place] for place in later])
            for place, answer in zip(later, again, strict=True):
                answers[place] = answer
            if any(answer["status"] not in LATER for answer in again):
                patience = _Patience(self._patience)
        return answers

    async def _submit(self, lines: Lines) -> list[dict[str, Any]]:
        status, text = await self._post(b"\n".join(line for _, line in lines))
        if status == 200:
            return [json.loads(answer) for answer in text.splitlines()]
        if len(lines) == 1:
            return [{"status": status, "detail": "too large for the intake"}]
        middle = len(lines) // 2
        return await self._submit(lines[:middle]) + await self._submit(lines[middle:])

    async def _post(self, body: bytes) -> tuple[int, str]:
        """The status of the answer, 200 or 413, and its text."""
        patience = _Patience(self._patience)
        headers = {"Content-Type": "application/x-ndjson"}
        while True:
            after = 0.0
            try:
                async with self._session.post(
                    f"{self._url}/v1/tasks:batch", data=io.BytesIO(body), headers=headers
                ) as answer:
                    text = await answer.text(errors="replace")
                    after = _seconds(answer.headers.get("Retry-After"))
                    if answer.status in (200, 413):
                        self._outage.reset()
                        self._after = after
                        return answer.status, text
                    reason = f"{answer.status} {text[:300]}"
                    if answer.status == 401:
                        raise click.ClickException(
                            f"{self._url} answers 401: set POSTROAD_API_KEY to a key that is good"
                        )
                    if answer.status not in (*LATER, 502, 504):
                        raise click.ClickException(f"{self._url} answers {reason}")
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                reason = str(error) or type(error).__name__
            await self._wait(patience, reason, after)

    async def _wait(self, patience: "_Patience", reason: str, after: float) -> None:
        """Wait for the next try, ``after`` so many seconds at least. Raises if patience is at its end."""
        if patience.is_over():
            raise UnreachableError(f"the intake at {self._url}", reason)
        if self._outage.is_worth_a_line():
            click.echo(f"waiting for the intake at {self._url}: {reason}", err=True)
        await asyncio.sleep(max(patience.pause.next(), after))


class _Patience:
    """How long something is tried, from its first failure on."""

    def __init__(self, seconds: float) -> None:
        self.pause = Pause()
        self._seconds = seconds
        self._until: float | None = None

    def is_over(self) -> bool:
        """True if the time is up."""
        now = asyncio.get_running_loop().time()
        self._until = self._until or now + self._seconds
        return now > self._until


def _seconds(text: str | None) -> float:
    """What ``Retry-After`` says in seconds, a minute at most."""
    return min(60.0, float(text)) if text is not None and text.isdecimal() else 0.0


def _prepared(
    pipeline: str, source: Iterable[bytes], tally: Tally, run: str, defaults: Mapping[str, str | None]
) -> Iterator[tuple[int, bytes]]:
    """The lines with their pipeline and a key; those that no intake would accept are refused here."""
    for number, line in enumerate(source, start=1):
        if not line.strip():
            continue
        try:
            document = decode(line)
        except UnstorableError as error:
            tally.refusals[number] = str(error)
            continue
        if not isinstance(document, dict):
            tally.refusals[number] = "not an object with the member payload"
            continue
        if document.setdefault("pipeline", pipeline) != pipeline:
            tally.refusals[number] = f"it is for the pipeline {document['pipeline']!r:.80}"
            continue
        if document.get("idempotency_key") is None and document.get("task_id") is None:
            document["idempotency_key"] = f"submit-{run}-{number}"
        for member, value in defaults.items():
            if value is not None and document.get(member) is None:
                document[member] = value
        yield number, json.dumps(document, separators=(",", ":")).encode()


async def _batches(lines: Iterator[tuple[int, bytes]], count: int) -> AsyncIterator[Lines]:
    """Groups of ``count`` lines, or of fewer large ones."""

    def take() -> Lines:
        group: Lines = []
        size = 0
        for number, line in lines:
            group.append((number, line))
            size += len(line)
            if len(group) == count or size >= BATCH_BYTES:
                break
        return group

    while group := await _aside(take):
        yield group


def _aside(function: Callable[[], Lines]) -> "asyncio.Future[Lines]":
    """Run ``function`` in a thread. Unlike with asyncio.to_thread nobody waits for it at the end: what is read from a
    terminal or a pipe may never come."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Lines] = loop.create_future()

    def settle(lines: Lines, error: Exception | None) -> None:
        if future.done():
            return
        if error:
            future.set_exception(error)
        else:
            future.set_result(lines)

    def run() -> None:
        lines: Lines = []
        error: Exception | None = None
        try:
            lines = function()
        except Exception as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, lines, error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _message(answer: dict[str, Any]) -> str:
    faults = [f"{fault['pointer'].removeprefix('#')}: {fault['detail']}" for fault in answer.get("errors", ())]
    return "; ".join(faults) or str(answer.get("detail", answer))
