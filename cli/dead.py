"""``postroad dead``: look at dead letters, and give them another chance."""

import asyncio
import getpass
import os
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import click

from ..core.errors import NotFoundError
from ..intake.dead_letters import list_dead_letters, requeue
from .connect import connection
from .options import options, read_settings
from .tables import print_rows


@click.group("dead")
def dead_command() -> None:
    """Look at dead letters, and requeue them."""


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
            return await list_dead_letters(opened, limit=limit, **filters)

    columns = ["dead_letter_id", "task_id", "pipeline", "stage", "attempts", "died_at", "fingerprint", "reason"]
    print_rows(asyncio.run(run()), columns, as_json=as_json)


@dead_command.command("requeue")
@click.argument("ids", metavar="ID...", nargs=-1)
@options("database_url", "schema")
@click.option("--all", "is_all", is_flag=True, help="All that match the filters, or simply all.")
@click.option("--pipeline", help="Only those of this pipeline.")
@click.option("--stage", help="Only those of stages of this name.")
@click.option("--fingerprint", help="Only those that failed alike.")
@click.option("--by", default=lambda: _user(), show_default="you", help="Who asks; stands in the task's journey.")
@click.option("--reason", help="Why; stands in the task's journey.")
@click.option("--dry-run", is_flag=True, help="Say how many would be requeued, and change nothing.")
def requeue_(ids: tuple[str, ...], is_all: bool, by: str, reason: str | None, dry_run: bool, **given: Any) -> None:
    """Let the stages of dead letters begin anew, with all their attempts.

    ID is that of a dead letter, or of a task: then all of its dead letters.
    """
    filters = {name: given.pop(name) for name in ("pipeline", "stage", "fingerprint")}
    if not ids and not is_all and not any(filters.values()):
        raise click.UsageError("name dead letters by id, or by --fingerprint, --stage or --pipeline, or say --all")
    if ids and (is_all or any(filters.values())):
        raise click.UsageError("name dead letters by id, or by filters, not both")
    wanted = {_parsed(one) for one in ids}
    settings = read_settings(given)

    async def run() -> tuple[int, int]:
        async with connection(settings) as opened:
            letters = await list_dead_letters(opened, limit=None, **filters)
            if wanted:
                letters = [one for one in letters if one["dead_letter_id"] in wanted or one["task_id"] in wanted]
                found = {one["dead_letter_id"] for one in letters} | {one["task_id"] for one in letters}
                if missing := wanted - found:
                    raise NotFoundError(f"no unresolved dead letter: {', '.join(sorted(map(str, missing)))}")
            if dry_run:
                return len(letters), 0
            ids = [one["dead_letter_id"] for one in letters]
            return len(letters), len(await requeue(opened, ids, settings.schema, by=by, reason=reason))

    matched, requeued = asyncio.run(run())
    if dry_run:
        click.echo(f"{matched:,} dead letters would be requeued", err=True)
    else:
        click.echo(f"{requeued:,} dead letters requeued", err=True)
    if not dry_run and requeued < matched:
        click.echo(f"{matched - requeued:,} left alone: resolved meanwhile, or their tasks are cancelled", err=True)


def _user() -> str:
    """Who runs this. In a container that is often a number without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # Python 3.13 made it an OSError
        return f"uid {os.getuid()}"


def _parsed(text: str) -> int | UUID:
    try:
        return int(text) if text.isdecimal() else UUID(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is the id of neither a dead letter nor a task", param_hint="ID") from None
