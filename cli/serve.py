"""``postroad serve``: the process of the intake, or several of them."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ..core.database import make_engine
from ..core.errors import SettingsError
from ..core.logs import configure_logging
from ..core.settings import Settings
from ..dashboard.app import Dashboard
from ..intake.app import create_app
from ..intake.connection import READ_SIZE, limited
from ..intake.keys import are_any
from ..outbox.process import process_name
from .connect import translated, wait_for_postgres
from .options import SERVERS, options, read_settings
from .running import insist, leave, on_stop, run_process
from .telemetry import collected
from .workers import Workers

log = logging.getLogger(__name__)


@click.command("serve")
@options(*SERVERS, "host", "port", "workers", "auth", "grace", "metrics", "log_level")
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

    run_process(run())


async def _serve(settings: Settings, sockets: list[socket.socket] | None = None) -> None:
    """Serve in this process, at the address in the settings or at ``sockets``, which are a parent's too."""
    name = process_name()
    app = create_app(settings, name=name, beside=Dashboard)
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

    def leave_together() -> None:
        workers.kill()
        leave()

    on_stop(workers.stop, again=leave_together)
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


async def _check_auth(settings: Settings) -> None:
    """Say in the log who may use the door. Raises ``SettingsError`` if everybody might who can reach the machine."""
    if settings.auth == "off":
        log.warning("auth is off: whoever reaches %s may do everything", settings.host)
        return
    engine = make_engine(settings, application="postroad", pool=3)
    try:
        with translated(settings):
            there_are_keys = await insist(engine, are_any, "looking for keys")
    finally:
        await engine.dispose()
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
        on_stop(stop, again=stop if self._is_child else leave)
        yield
