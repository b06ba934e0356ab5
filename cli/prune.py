"""``postroad prune``: drop what is past its retention."""

import asyncio
from typing import Any

import click
from redis.exceptions import RedisError

from ..core import broker
from ..core.broker import Keys
from ..core.database import make_engine
from ..core.errors import first_line
from ..core.settings import Settings
from ..outbox.marker import Marker
from ..outbox.retention import Pruned, prune
from .connect import check_schema
from .options import options, read_settings


@click.command("prune")
@options("database_url", "redis_url", "schema", "prefix", "retention")
@click.option("--dry-run", is_flag=True, help="Say what would be dropped, and change nothing.")
def prune_command(dry_run: bool, **given: Any) -> None:
    """Drop what is past its retention: old events that were published, and finished tasks whose events are gone.

    Run it daily. It waits for nobody and nobody waits for it; nothing goes that an open task, an unresolved dead letter
    or the relay still needs.
    """
    settings = read_settings(given)

    async def run() -> Pruned:
        await asyncio.to_thread(check_schema, settings)
        engine = make_engine(settings, application="postroad prune", pool=3)
        try:
            published = await _published(settings)
            return await prune(engine, settings.schema, settings.retention, published=published, dry_run=dry_run)
        finally:
            await engine.dispose()

    pruned = asyncio.run(run())
    would = "would be " if dry_run else ""
    click.echo(f"{pruned.leaves} leaves of the outbox {would}emptied, about {pruned.events:,} events", err=True)
    if pruned.busy_leaves:
        click.echo(f"{pruned.busy_leaves} leaves are in use, and left for the next time", err=True)
    click.echo(f"{pruned.tasks:,} tasks {would}deleted", err=True)
    if not dry_run:
        click.echo(f"{pruned.ticks:,} ticks and {pruned.keys:,} idempotency keys deleted", err=True)


async def _published(settings: Settings) -> int | None:
    """The tick of the earliest marker; ``None`` if a shard has none or Redis is away: then events stay."""
    clients = broker.Clients(settings, connections=1)
    keys = Keys(settings.prefix, settings.shards)
    try:
        texts = [str(await clients.of(shard).get(keys.marker(shard)) or "") for shard in keys.shards]
    except (RedisError, OSError) as error:
        click.echo(f"Redis is away, so the outbox stays as it is: {first_line(error)}", err=True)
        return None
    finally:
        await clients.aclose()
    markers = [Marker.parse(text) for text in texts]
    if any(marker is None for marker in markers):
        click.echo("a shard has no marker yet, so the outbox stays as it is", err=True)
        return None
    return min(marker.tick for marker in markers if marker is not None)
