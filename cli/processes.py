"""``postroad relay`` and ``postroad stage run``: the processes between the door and the outcome."""

import asyncio
import logging
import os
from typing import Any

import click
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ..core.database import make_engine
from ..core.logs import configure_logging, keep_lines
from ..core.pipeline import Pipeline, Stage
from ..core.settings import Settings
from ..outbox.process import process_name
from ..relay.relay import Relay
from ..stages.deploy import record_if_new
from ..stages.worker import Worker
from .app import load_app, select_stages
from .connect import wait_for_postgres, wait_for_redis
from .options import SERVERS, options, read_settings
from .running import insist, on_stop, run_process
from .telemetry import collected

log = logging.getLogger(__name__)


@click.command("relay")
@options(*SERVERS, "direct_url", "lease", "metrics", "log_level")
def relay_command(log_level: str, **given: Any) -> None:
    """Run a relay: from the outbox to the streams. Several may run; one works, the others take over."""
    settings = read_settings(given)
    configure_logging(log_level)

    async def run() -> None:
        name = process_name()
        relay = Relay(settings, name=name)
        await wait_for_postgres(settings)
        with collected("relay", name, settings):
            relaying = asyncio.create_task(relay.run())
            on_stop(relaying.cancel)
            try:
                await relaying
            except asyncio.CancelledError:
                log.info("stopped")

    run_process(run())


@click.command("run")
@click.argument("names", metavar="NAME...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Run all stages of the app in this process.")
@options("app", *SERVERS, "lease", "grace", "metrics", "log_level")
def run_command(names: tuple[str, ...], is_all: bool, log_level: str, **given: Any) -> None:
    """Run stages, given as PIPELINE.STAGE: from the streams to their handlers.

    Start it as often as the stage needs; each process is one consumer.
    """
    if bool(names) == is_all:
        raise click.UsageError("name the stages to run, or say --all")
    settings = read_settings(given)
    configure_logging(log_level)
    pipelines = load_app(settings.app)
    keep_lines()
    stages = select_stages(pipelines, names)
    hung, code = run_process(_work(settings, pipelines, stages))
    if hung or code:
        # Functions that never return would keep the interpreter waiting for their threads.
        log.warning("%d handlers did not return in time; leaving them", hung)
        logging.shutdown()
        os._exit(code)


async def _work(settings: Settings, pipelines: list[Pipeline], stages: list[Stage]) -> tuple[int, int]:
    """Work until told to stop; how many handlers still hang then, and the exit code."""
    worker = Worker(settings, stages)
    await wait_for_postgres(settings)
    engine = make_engine(settings, application="postroad stage", pool=3)
    try:
        await _record(engine, pipelines, stages, settings.schema)
    finally:
        await engine.dispose()
    await wait_for_redis(settings)
    on_stop(worker.stop)
    with collected("stage", worker.name, settings):
        await worker.run()
    return worker.abandoned_threads, 1 if worker.is_worn_out else 0


async def _record(engine: AsyncEngine, pipelines: list[Pipeline], stages: list[Stage], schema: str) -> None:
    async def record(opened: AsyncConnection) -> None:
        for pipeline in pipelines:
            names = [stage.name for stage in stages if stage.pipeline == pipeline.name]
            if names:
                await record_if_new(opened, pipeline, names, schema)

    await insist(engine, record, "recording the pipelines")
