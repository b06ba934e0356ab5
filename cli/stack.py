"""Everything that a deployment needs, on this machine: servers, tables, intake, relay, one process a stage."""

import asyncio
import contextlib
import os
import shlex
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import click

from ..core.errors import PostroadError, SettingsError
from ..core.pipeline import Stage
from ..core.servers import embedded
from ..core.settings import Settings, masked
from ..stages.deploy import deploy
from .app import load_app, select_stages
from .connect import connection
from .migrate import migrate
from .supervisor import Log, Supervisor


class StackError(PostroadError):
    """A part of the stack did not come up."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A running deployment. ``url`` is that of its intake."""

    settings: Settings
    stages: list[Stage]
    supervisor: Supervisor
    url: str


@asynccontextmanager
async def stack(
    settings: Settings, *, folder: Path, log: Log, before: str | None = None, durable: bool = True
) -> AsyncIterator[Stack]:
    """Bring everything up, and down again at the end, also if the caller is cancelled while it comes up.

    Servers that the settings do not name are embedded ones, their data in ``folder``; ``durable`` is their ``fsync``.
    ``before`` is a command that is run after the migration, with ``DATABASE_URL`` and ``REDIS_URL`` set: the
    app's own migration.
    """
    pipelines = load_app(settings.app)
    async with contextlib.AsyncExitStack() as exits:
        if not (settings.database_url and settings.redis_url):
            settings = await _with_embedded(exits, settings, folder, durable)
        await asyncio.to_thread(migrate, settings)
        environment = {**os.environ, **settings.environment(), "PYTHONUNBUFFERED": "1"}
        if before:
            await _run_before(before, environment)
        async with connection(settings) as opened:
            for pipeline in pipelines:
                await deploy(opened, pipeline, settings.schema)
        supervisor = Supervisor(log=log)
        exits.push_async_callback(supervisor.stop, timeout=settings.grace.total_seconds() + 10)
        port = settings.port or _free_port(settings.host)
        environment["POSTROAD_PORT"] = str(port)
        url = f"http://{settings.host}:{port}"
        environment.setdefault("POSTROAD_PUBLIC_URL", url)
        program = [sys.executable, "-m", "postroad.cli"]
        stages = select_stages(pipelines, [])
        supervisor.start("intake", [*program, "serve"], environment)
        supervisor.start("relay", [*program, "relay"], environment)
        for stage in stages:
            supervisor.start(stage.full_name, [*program, "stage", stage.full_name], environment)
        await _wait_until_ready(url, supervisor)
        yield Stack(replace(settings, port=port), stages, supervisor, url)


async def _with_embedded(exits: contextlib.AsyncExitStack, settings: Settings, folder: Path, durable: bool) -> Settings:
    if settings.database_url or settings.redis_url:
        missing = "REDIS_URL" if settings.database_url else "DATABASE_URL"
        raise SettingsError(f"{missing} is not set: name both servers, or neither to have embedded ones")
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    running = embedded(folder, fsync=durable, appendonly=True)
    starting = asyncio.create_task(asyncio.to_thread(running.__enter__))

    async def stop() -> None:
        await asyncio.wait({starting})
        if not starting.exception():
            await asyncio.to_thread(running.__exit__, None, None, None)

    exits.push_async_callback(stop)
    servers = await asyncio.shield(starting)
    click.echo(f"postgres  {masked(servers.database_url)}", err=True)
    click.echo(f"redis     {masked(servers.redis_url)}", err=True)
    return replace(settings, database_url=servers.database_url, redis_url=servers.redis_url)


async def _run_before(command: str, environment: dict[str, str]) -> None:
    try:
        program, *arguments = shlex.split(command)
        if program in ("python", "python3"):
            program = sys.executable
        process = await asyncio.create_subprocess_exec(program, *arguments, env=environment)
    except (OSError, ValueError) as error:
        raise StackError(f"--before {command!r} cannot be run: {error}") from error
    try:
        code = await process.wait()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        raise
    if code:
        raise StackError(f"--before {command!r} ended with code {code}")


async def _wait_until_ready(url: str, supervisor: Supervisor) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
        for _ in range(600):
            if supervisor.failed.is_set():
                raise StackError("a process could not be started; its last lines say why")
            try:
                async with session.get(f"{url}/readyz") as answer:
                    if answer.status == 200:
                        return
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(0.1)
    raise StackError(f"the intake at {url} does not become ready")


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
