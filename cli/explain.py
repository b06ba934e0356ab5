"""``postroad explain``: why a task is where it is."""

import asyncio
import json
from dataclasses import asdict
from typing import Any
from uuid import UUID

import click

from ..outbox.explain import Explanation, explain
from ..outbox.whereabouts import Locator
from .connect import connection
from .options import options, read_settings
from .tables import plain


@click.command("explain")
@click.argument("task_id", type=click.UUID)
@options("database_url", "redis_url", "schema", "prefix")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def explain_command(task_id: UUID, as_json: bool, **given: Any) -> None:
    """Say why a task is not done: a sentence for each stage that is to be done, the most telling first.

    Without Redis it says what Postgres knows.
    """
    settings = read_settings(given)

    async def run() -> Explanation:
        locator = Locator(settings)
        try:
            async with connection(settings) as opened:
                return await explain(opened, task_id, settings.schema, locator)
        finally:
            await locator.aclose()

    explanation = asyncio.run(run())
    if as_json:
        click.echo(json.dumps(asdict(explanation), default=plain))
        return
    for reason in explanation.reasons:
        click.echo(reason.sentence)
