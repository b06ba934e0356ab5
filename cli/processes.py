"""``postroad serve``, ``relay`` and ``stage``: the processes of a deployment."""

import asyncio
import gc
import importlib
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click
import uvicorn
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from starlette.applications import Starlette
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ..core.backoff import Pause
from ..core.database import is_transient, make_engine
from ..core.errors import SettingsError, first_line
from ..core.logs import configure_logging, keep_lines
from ..core.pipeline import Pipeline, Stage
from ..core.settings import Settings
from ..intake.app import create_app
from ..intake.connection import READ_SIZE, limited
from ..intake.keys import are_any
from ..outbox.process import process_name
from ..relay.relay import Relay
from ..stages.deploy import record_if_new
from ..stages.worker import Worker
from .app import load_app, select_stages
from .connect import translated, wait_for_postgres, wait_for_redis
from .options import options, read_settings
from .telemetry import collected
from .workers import Workers

log = logging.getLogger(__name__)

T = TypeVar("T")

_SERVERS = ("database_url", "redis_url", "schema", "prefix")


@click.command("serve")
@options(*_SERVERS, "host", "port", "workers", "auth", "grace", "metrics", "log_level")
@click.option("--socket", "files", type=int, multiple=True, hidden=True, help="Of these, which the parent has opened.")
def serve_command(log_level: str, files: tuple[int, ...], **given: Any) -> None:
    """Run the intake: the HTTP door, on http://127.0.0.1:8080 unless told otherwise."""
    settings = read_settings(given)
    configure_logging(log_level)

    async def run() -> None:
        if files:
            # Our parent has looked whether we may serve. Should Postgres be away just now, whoever asks is told.
            await _serve(settings, [socket.socket(fileno=file) for file in files])
            return
        await wait_for_postgres(settings)
        await _check_auth(settings)
        if settings.workers == 1:
            await _serve(settings)
        else:
            await _share(settings, ["--log-level", log_level, *_same_file(given)])

    _run(run())


async def _serve(settings: Settings, sockets: list[socket.socket] | None = None) -> None:
    """Serve in this process, at the address in the settings or at ``sockets``, which are a parent's too."""
    name = process_name()
    app = create_app(settings, name=name)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=limited(AutoHTTPProtocol, within=settings.request_time, most=settings.connections),
        # The limit of a head is ours, for both parsers; this one must not be met before, by what comes with it.
        h11_max_incomplete_event_size=READ_SIZE,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.grace.total_seconds())),
    )
    try:
        with collected("intake", name, settings):
            await _Server(config, app, is_child=sockets is not None).serve(sockets)
    except SystemExit:  # with a code of uvicorn's own, after a line that says why
        raise click.exceptions.Exit(1) from None


async def _share(settings: Settings, arguments: Sequence[str]) -> None:
    """Serve in several processes, started with ``arguments`` too."""
    workers = Workers(settings, arguments)

    def leave() -> None:
        workers.kill()
        _leave()

    _on_stop(workers.stop, again=leave)
    try:
        code = await workers.run()
    except OSError as error:
        log.error("cannot listen on %s, port %d: %s", settings.host, settings.port, error.strerror or error)
        code = 1
    if code:
        raise click.exceptions.Exit(code)


def _same_file(given: Mapping[str, Any]) -> list[str]:
    """The option that names the file of settings, if one was given."""
    return ["--config", str(given["config"])] if given.get("config") else []


@click.command("relay")
@options(*_SERVERS, "direct_url", "lease", "metrics", "log_level")
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
            _on_stop(relaying.cancel)
            try:
                await relaying
            except asyncio.CancelledError:
                log.info("stopped")

    _run(run())


@click.command("run")
@click.argument("names", metavar="NAME...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Run all stages of the app in this process.")
@options("app", *_SERVERS, "lease", "grace", "metrics", "log_level")
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
    hung, code = _run(_work(settings, pipelines, stages))
    if hung or code:
        # Functions that never return would keep the interpreter waiting for their threads.
        log.warning("%d handlers did not return in time; leaving them", hung)
        logging.shutdown()
        os._exit(code)


async def _check_auth(settings: Settings) -> None:
    """Say in the log who may use the door. Raises ``SettingsError`` if everybody might who can reach the machine."""
    if settings.auth == "off":
        log.warning("auth is off: whoever reaches %s may do everything", settings.host)
        return
    there_are_keys = await _asked(settings, are_any)
    if there_are_keys:
        log.info("every request needs a key (auth is %s, and there are some)", settings.auth)
    elif settings.auth == "required":
        log.warning("every request needs a key, and there is none: make one with postroad key create")
    elif await asyncio.to_thread(_is_loopback, settings.host):
        log.info("there are no keys: whoever reaches %s, from this machine, may do everything", settings.host)
    else:
        raise SettingsError(
            f"host: {settings.host} can be reached from other machines, and there are no keys: make one with"
            " postroad key create NAME --scope submit; or, behind a proxy that lets nobody else in, set auth to off"
        )


def _is_loopback(host: str) -> bool:
    """True if only this machine reaches ``host``; a name may have several addresses."""
    try:
        found = socket.getaddrinfo(host or None, None, flags=socket.AI_PASSIVE)
    except OSError:
        return True  # nobody can listen there: uvicorn will say so
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


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
    _on_stop(worker.stop)
    with collected("stage", worker.name, settings):
        await worker.run()
    return worker.abandoned_threads, 1 if worker.is_worn_out else 0


async def _record(engine: AsyncEngine, pipelines: list[Pipeline], stages: list[Stage], schema: str) -> None:
    async def record(opened: AsyncConnection) -> None:
        for pipeline in pipelines:
            names = [stage.name for stage in stages if stage.pipeline == pipeline.name]
            if names:
                await record_if_new(opened, pipeline, names, schema)

    await _insist(engine, record, "recording the pipelines")


async def _asked(settings: Settings, question: Callable[[AsyncConnection], Awaitable[T]]) -> T:
    engine = make_engine(settings, application="postroad", pool=3)
    try:
        with translated(settings):
            return await _insist(engine, question, "looking for keys")
    finally:
        await engine.dispose()


async def _insist(engine: AsyncEngine, work: Callable[[AsyncConnection], Awaitable[T]], name: str) -> T:
    """Do ``work`` in a transaction, again and again while Postgres is away."""
    pause = Pause()
    while True:
        try:
            async with engine.begin() as opened:
                return await work(opened)
        except Exception as error:
            if not is_transient(error):
                raise
            log.warning("%s pauses: %s", name, first_line(error))
        await asyncio.sleep(pause.next())


class _Server(uvicorn.Server):
    """Uvicorn, which says where it listens and leaves with 0 when it was told to stop."""

    def __init__(self, config: uvicorn.Config, app: Starlette, *, is_child: bool) -> None:
        super().__init__(config)
        self._app = app
        self._is_child = is_child

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._is_child:  # it says nothing then
            self._log_started_message(sockets)

    def _log_started_message(self, listeners: Any) -> None:
        for server in self.servers:
            for listener in server.sockets:
                host, port = listener.getsockname()[:2]
                log.info("accepting tasks on http://%s:%d", host, port)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        def stop() -> None:
            self.should_exit = True
            # Or it would wait for streams that only end with their tasks.
            self._app.state.stop()

        # Who stops a whole group of processes tells a child, and so does its parent: that is no hurry.
        _on_stop(stop, again=stop if self._is_child else _leave)
        yield


def _leave() -> None:
    logging.shutdown()
    os._exit(130)


def _on_stop(stop: Callable[[], Any], *, again: Callable[[], Any] = _leave) -> None:
    """Call ``stop`` at the first SIGTERM or SIGINT; at the second ``again``, by default leave at once, with 130."""
    loop = asyncio.get_running_loop()
    seen = False

    def handle() -> None:
        nonlocal seen
        if seen:
            again()
            return
        seen = True
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle)


YOUNG = 10_000
"""Objects more than there were before, after which Python looks for those that only hold each other."""


def _run(main: Coroutine[Any, Any, Any]) -> Any:
    # What was imported stays: to walk through it again and again took a quarter of the intake's time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if sys.platform != "win32":
        try:
            factory = importlib.import_module("uvloop").new_event_loop
        except ImportError:
            factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)
