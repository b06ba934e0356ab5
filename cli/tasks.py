"""``postroad task``: look tasks up, cancel them, run a stage again."""

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import click

from ..core.database import make_engine
from ..core.errors import NotFoundError, RefusedError
from ..core.task import Status
from ..intake.cancel import cancel
from ..intake.cursor import Place, cursor_of, place_of
from ..intake.listing import Filter, list_tasks
from ..intake.lookup import find_task
from ..intake.retry import retry_dead, retry_from
from ..intake.stream import event_body
from ..intake.watch import Happening, follow
from ..outbox.audit import Step, journey
from .connect import check_schema, connection, translated
from .options import checked_moment, options, read_settings, who_and_why
from .tables import cell, plain, print_rows


@click.group("task")
def task_command() -> None:
    """Look tasks up; cancel them, or run a stage again."""


@task_command.command("show")
@click.argument("task_id", type=click.UUID)
@options("database_url", "schema")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def show(task_id: UUID, as_json: bool, **given: Any) -> None:
    """Show one task: where it stands, its stages, and its journey."""
    settings = read_settings(given)

    async def run() -> tuple[dict[str, Any] | None, Sequence[Step]]:
        async with connection(settings) as opened:
            task = await find_task(opened, task_id, settings.schema)
            return task, await journey(opened, task_id, settings.schema)

    task, steps = asyncio.run(run())
    if task is None:
        raise NotFoundError(f"there is no task {task_id}")
    events = [
        {
            "occurred_at": step.occurred_at,
            "event": f"{step.type}:{step.stage}" if step.stage else step.type,
            "data": step.data,
        }
        for step in steps
    ]
    if as_json:
        click.echo(json.dumps(task | {"events": events}, default=plain))
        return
    for name, value in task.items():
        if name != "stages" and value not in (None, [], {}):
            click.echo(f"{name:14} {json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else cell(value)}")
    click.echo()
    print_rows(task["stages"], ["stage", "status", "attempts", "next_retry_at", "worker", "error"], as_json=False)
    click.echo()
    print_rows(events, ["occurred_at", "event", "data"], as_json=False)


@task_command.command("list")
@options("database_url", "schema")
@click.option("--status", type=click.Choice([str(status) for status in Status]), help="Only those.")
@click.option("--pipeline", help="Only those of this pipeline.")
@click.option("--stage", help="Only those that are at this stage now.")
@click.option(
    "--label", "labels", metavar="NAME=VALUE", multiple=True, help="Only those that have it; of several, all."
)
@click.option("--after", metavar="MOMENT", callback=checked_moment, help="Only those created then or later.")
@click.option("--before", metavar="MOMENT", callback=checked_moment, help="Only those created earlier.")
@click.option("--fingerprint", help="Only those with an unresolved dead letter of it.")
@click.option("--q", metavar="ID", help="By a task's id or how it begins, an idempotency key, or a trace's id.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many at most.")
@click.option("--cursor", metavar="WORD", help="Go on where the same list ended.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def list_(
    labels: tuple[str, ...],
    after: datetime | None,
    before: datetime | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """List tasks, the newest first. If there are more, stderr says how to go on."""
    settings = read_settings(given)
    said = {name: given[name] for name in ("status", "pipeline", "stage", "fingerprint", "q")}
    wanted = Filter(**said, labels=[_label(label) for label in labels], created_after=after, created_before=before)
    asked = said | {"label": list(labels), "after": str(after or ""), "before": str(before or "")}
    try:
        place = None if cursor is None else place_of(cursor, asked)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--cursor") from None

    async def run() -> tuple[Sequence[dict[str, Any]], Place | None]:
        async with connection(settings) as opened:
            return await list_tasks(opened, wanted, after=place, limit=limit)

    columns = ["task_id", "pipeline", "status", "stage_status", "retry_count", "created_at", "finished_at"]
    rows, following = asyncio.run(run())
    print_rows(rows, columns, as_json=as_json)
    if following:
        click.echo(f"there are more: the same with --cursor {cursor_of(following, asked)}", err=True)


def _label(written: str) -> tuple[str, str]:
    name, equals, value = written.partition("=")
    if not equals:
        raise click.BadParameter(f"{written!r} is not of the form NAME=VALUE", param_hint="--label")
    return name, value


@task_command.command("tail")
@click.argument("task_id", type=click.UUID)
@options("database_url", "schema")
@click.option("--jsonl", "as_jsonl", is_flag=True, help="Print a JSON document a line.")
def tail(task_id: UUID, as_jsonl: bool, **given: Any) -> None:
    """Print the journey of a task, and go on with what happens, until the task has ended."""
    settings = read_settings(given)

    async def run() -> None:
        await asyncio.to_thread(check_schema, settings)
        engine = make_engine(settings, application="postroad", pool=1)
        try:
            with translated(settings):
                async for news in follow(engine, task_id, settings.schema):
                    for event in news.events:
                        _print_event(event, as_jsonl=as_jsonl)
                click.echo(f"{task_id} is {news.status}", err=True)
        finally:
            await engine.dispose()

    asyncio.run(run())


def _print_event(event: Happening, *, as_jsonl: bool) -> None:
    body = event_body(event)
    if as_jsonl:
        click.echo(json.dumps(body))
    else:
        click.echo(f"{cell(event.occurred_at)}  {body['type']:28}  {cell(event.data) if event.data else ''}".rstrip())


@task_command.command("cancel")
@click.argument("task_ids", metavar="TASK_ID...", type=click.UUID, nargs=-1, required=True)
@options("database_url", "schema")
@who_and_why
def cancel_(task_ids: tuple[UUID, ...], by: str, reason: str | None, **given: Any) -> None:
    """Cancel tasks that have not ended. A handler that runs is ended too; nothing that it did counts.

    Exit code 3 if there is no such task, 4 if one has ended already; the others are cancelled all the same.
    """
    settings = read_settings(given)

    async def run() -> tuple[list[UUID], list[UUID]]:
        async with connection(settings) as opened:
            cancelled = await cancel(opened, task_ids, settings.schema, by=by, reason=reason)
            left = [one for one in task_ids if one not in cancelled]
            return cancelled, [one for one in left if await find_task(opened, one, settings.schema) is None]

    cancelled, unknown = asyncio.run(run())
    click.echo(f"{len(cancelled):,} tasks cancelled", err=True)
    if unknown:
        raise NotFoundError(f"there is no task {', '.join(map(str, unknown))}")
    if ended := [one for one in task_ids if one not in cancelled]:
        raise RefusedError(f"already completed or cancelled: {', '.join(map(str, ended))}")


@task_command.command("retry")
@click.argument("task_id", type=click.UUID)
@click.option("--from", "stage", metavar="STAGE", help="The first stage to run again, done or not.")
@options("database_url", "schema")
@who_and_why
def retry(task_id: UUID, stage: str | None, by: str, reason: str | None, **given: Any) -> None:
    """Run the stages again that are dead letters; or, with --from, that stage and every one that comes after it.

    With --from their effects happen again: this is the one way in which a stage that was done runs a second time.
    """
    settings = read_settings(given)

    async def run() -> list[str]:
        async with connection(settings) as opened:
            if stage is None:
                return await retry_dead(opened, task_id, settings.schema, by=by, reason=reason)
            return await retry_from(opened, task_id, stage, settings.schema, by=by, reason=reason)

    click.echo(f"will run again: {', '.join(asyncio.run(run()))}", err=True)
