"""Several processes of the intake behind one port.

Each listens on sockets of its own, among which Linux spreads the connections. Of a socket that they share, who wakes
first takes all that wait: what a proxy opens at once is then often one process's alone. The sockets are opened here and
stay open, so that what waits at one is served by the process that takes the place of one that died.

Uvicorn's own supervisor would not do: it starts what dies again at once and for ever, it ends with 0 whatever became of
that, and its processes outlive it when it is killed.
"""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from ..core.settings import Settings
from .supervisor import Supervisor

log = logging.getLogger(__name__)

BACKLOG = 2048
"""Connections that may wait at one socket; as many as uvicorn lets wait."""

LATE = 8.0
"""Seconds beyond ``grace`` after which a process that has not ended is killed: before whoever stops us kills us."""


class Workers:
    """``settings.workers`` processes of ``postroad serve``, each started with ``arguments`` too."""

    def __init__(self, settings: Settings, arguments: Sequence[str]) -> None:
        self._settings = settings
        self._arguments = arguments
        self._supervisor = Supervisor()
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Serve until ``stop``. Returns the exit code: 1 if a process could not be kept running, or had to be killed.

        Raises ``OSError`` if one cannot listen at that address.
        """
        environment = {**os.environ, **self._settings.environment(), "POSTROAD_WORKERS": "1"}
        with ExitStack() as opened:
            for number, sockets in enumerate(await _listen(self._settings), start=1):
                files = [opened.enter_context(one).fileno() for one in sockets]
                command = [sys.executable, "-m", "postroad.cli", "serve", *self._arguments]
                command += [f"--socket={file}" for file in files]
                self._supervisor.start(f"intake {number}", command, environment, files=files)
            failing = asyncio.create_task(self._supervisor.failed.wait())
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait({failing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            # The sockets are closed first: who comes from now on is to be refused, and not to wait for nobody.
        for waiting in (failing, stopping):
            waiting.cancel()
        killed = await self._supervisor.stop(timeout=self._settings.grace.total_seconds() + LATE)
        for child in killed:
            log.error("%s did not end in time and was killed", child.name)
        return 1 if killed or self._supervisor.failed.is_set() else 0

    def stop(self) -> None:
        """Let all of them answer what they have begun to, and end."""
        self._stopping.set()

    def kill(self) -> None:
        """Let none of them live on."""
        self._supervisor.kill_all()


async def _listen(settings: Settings) -> list[list[socket.socket]]:
    """For each process the sockets at which it listens: one for each address of the host. Raises ``OSError``."""
    # First as anybody else would: for those who may share a port none is taken.
    loop = asyncio.get_running_loop()
    probe = await loop.create_server(asyncio.Protocol, settings.host, settings.port, start_serving=False)
    addresses = [(one.family, one.getsockname()) for one in probe.sockets]
    probe.close()
    await probe.wait_closed()

    def sockets() -> list[socket.socket]:
        return [
            socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=True)
            for family, address in addresses
        ]

    if sys.platform == "linux":
        return [sockets() for _ in range(settings.workers)]
    # Elsewhere the last one to listen gets everything.
    return [sockets()] * settings.workers
