"""``postroad dead``: look at dead letters, give them another chance, or close the file."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import click

from ..core.errors import NotFoundError
from ..intake.dead_letters import (
    LARGEST_ID,
    Resolve,
    Selection,
    discard,
    find_dead_letters,
    list_dead_letters,
    list_groups,
    requeue,
)
from .connect import connection
from .options import options, read_settings, who_and_why
from .tables import print_rows


@click.group("dead")
def dead_command() -> None:
    """Look at dead letters; requeue or discard them."""


@dead_command.command("list")
@options("database_url", "schema")
@click.option("--pipeline", help="Only those of this pipeline.")
@click.option("--stage", help="Only those of stages of this name.")
@click.option("--fingerprint", help="Only those that failed alike.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="How many at most.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def list_(limit: int, as_json: bool, **given: Any) -> None:
    """List the dead letters that nobody has resolved, the oldest first."""
    filters = {name: given.pop(name) for name in ("pipeline", "stage", "fingerprint")}
    settings = read_settings(given)

    async def run() -> Sequence[dict[str, Any]]:
        async with connection(settings) as opened:
            return await list_dead_letters(opened, Selection(**filters), limit=limit)

    columns = ["dead_letter_id", "task_id", "pipeline", "stage", "attempts", "died_at", "fingerprint", "reason"]
    print_rows(asyncio.run(run()), columns, as_json=as_json)


@dead_command.command("groups")
@options("database_url", "schema")
@click.option("--pipeline", help="Only those of this pipeline.")
@click.option("--stage", help="Only those of stages of this name.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def groups(as_json: bool, **given: Any) -> None:
    """List what dead letters failed of: those that failed alike are one group, the largest first."""
    filters = {name: given.pop(name) for name in ("pipeline", "stage")}
    settings = read_settings(given)

    async def run() -> Sequence[dict[str, Any]]:
        async with connection(settings) as opened:
            return await list_groups(opened, settings.schema, **filters)

    columns = ["letters", "pipeline", "stage", "fingerprint", "oldest", "newest", "reason"]
    print_rows(asyncio.run(run()), columns, as_json=as_json)


def _selection(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command what selects dead letters: ids, or filters, or all."""
    for decorate in (
        click.option("--dry-run", is_flag=True, help="Say how many there are, and change nothing."),
        who_and_why,
        click.option("--fingerprint", help="Only those that failed alike."),
        click.option("--stage", help="Only those of stages of this name."),
        click.option("--pipeline", help="Only those of this pipeline."),
        click.option("--all", "is_all", is_flag=True, help="All that match the filters, or simply all."),
        options("database_url", "schema"),
        click.argument("ids", metavar="ID...", nargs=-1),
    ):
        command = decorate(command)
    return command


@dead_command.command("requeue")
@_selection
@click.option("--rate", metavar="N/s", help="Requeue so many in a second, so that they do not all run at once.")
def requeue_(rate: str | None, **given: Any) -> None:
    """Let the stages of dead letters begin anew, with all their attempts.

    ID is that of a dead letter, or of a task: then all of its dead letters.
    """
    _resolve(requeue, "requeued", rate=_rate(rate), **given)


@dead_command.command("discard")
@_selection
def discard_(**given: Any) -> None:
    """Resolve dead letters without another try; their tasks stay failed.

    ID is that of a dead letter, or of a task: then all of its dead letters.
    """
    _resolve(discard, "discarded", rate=None, **given)


def _resolve(
    resolve: Resolve,
    done: str,
    *,
    ids: tuple[str, ...],
    is_all: bool,
    by: str,
    reason: str | None,
    dry_run: bool,
    rate: float | None,
    **given: Any,
) -> None:
    filters = {name: given.pop(name) for name in ("pipeline", "stage", "fingerprint")}
    if not ids and not is_all and not any(filters.values()):
        raise click.UsageError("name dead letters by id, or by --fingerprint, --stage or --pipeline, or say --all")
    if ids and (is_all or any(filters.values())):
        raise click.UsageError("name dead letters by id, or by filters, not both")
    wanted = {_parsed(one) for one in ids}
    selection = Selection(**filters)
    if wanted:
        numbers = [one for one in wanted if isinstance(one, int) and one <= LARGEST_ID]
        selection = Selection(ids=numbers, tasks=[one for one in wanted if isinstance(one, UUID)])
    settings = read_settings(given)

    async def find() -> list[int]:
        async with connection(settings) as opened:
            letters = await find_dead_letters(opened, selection)
        if missing := wanted.difference(*letters):
            raise NotFoundError(f"no unresolved dead letter: {', '.join(sorted(map(str, missing)))}")
        return [dead_letter_id for dead_letter_id, _ in letters]

    async def run(letters: list[int]) -> int:
        # Without a rate in one transaction; with one, what a second may bring in each.
        size = max(1, round(rate)) if rate else max(1, len(letters))
        pause = size / rate if rate else 0.0
        count = 0
        for start in range(0, len(letters), size):
            if start:
                await asyncio.sleep(pause)
            async with connection(settings) as opened:
                count += len(
                    await resolve(opened, letters[start : start + size], settings.schema, by=by, reason=reason)
                )
        return count

    letters = asyncio.run(find())
    if dry_run:
        click.echo(f"{len(letters):,} dead letters would be {done}", err=True)
        return
    count = asyncio.run(run(letters))
    click.echo(f"{count:,} dead letters {done}", err=True)
    if count < len(letters):
        why = "resolved meanwhile, or their tasks are cancelled or their stages gone"
        click.echo(f"{len(letters) - count:,} left alone: {why}", err=True)


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    number = text.removesuffix("/s")
    try:
        rate = float(number)
    except ValueError:
        rate = math.nan
    if not 0.1 <= rate <= 100_000:
        raise click.BadParameter(f"{text!r} is no rate such as 50/s, from 0.1/s to 100000/s", param_hint="--rate")
    return rate


def _parsed(text: str) -> int | UUID:
    try:
        return int(text) if text.isdecimal() else UUID(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is the id of neither a dead letter nor a task", param_hint="ID") from None
