"""Run processes as children: show what they print, start them again when they die, stop them together."""

import asyncio
import itertools
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import click

from ..core.servers import watch

log = logging.getLogger(__name__)

_COLOURS = itertools.cycle(("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green"))

RESTARTS, WINDOW = 5, 60.0
"""A child that dies more often than this, within so many seconds, is not started again."""

LONGEST_LINE = 1024 * 1024
"""Bytes of one line of a child's output that we show."""


@dataclass
class Child:
    """One process, started again under the same name whenever it dies, with growing pauses.

    It inherits the open files whose numbers are ``files``.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    files: Sequence[int] = ()
    process: asyncio.subprocess.Process | None = None
    starts: list[float] = field(default_factory=list)
    colour: str = field(default_factory=lambda: next(_COLOURS))

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self.process.pid if self.process and self.process.returncode is None else None


class Supervisor:
    """Starts children and keeps them running until ``stop``.

    ``log`` is where their lines go, each behind the name of its child. Without one they write to our own stdout and
    stderr, and what there is to say of them is logged.
    """

    def __init__(self, *, log: "Log | None" = None) -> None:
        self._log = log
        self._children: dict[str, Child] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self.failed = asyncio.Event()
        """Set when a child has died too often and was given up."""

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], *, files: Sequence[int] = ()
    ) -> Child:
        """Start a child and keep it running. Its name must be its own."""
        assert name not in self._children, name
        child = Child(name, command, environment, files)
        self._children[name] = child
        self._watchers.append(asyncio.create_task(self._keep(child)))
        return child

    def kill(self, name: str) -> int | None:
        """Kill a child with SIGKILL; it is started again. Returns its id, ``None`` if it was not running."""
        child = self._children[name]
        if child.pid is not None and child.process is not None:
            pid = child.pid
            child.process.kill()
            return pid
        return None

    def kill_all(self) -> list[Child]:
        """Kill all children that run with SIGKILL; which these were."""
        return [child for child in self._children.values() if self.kill(child.name)]

    async def stop(self, *, timeout: float = 30) -> list[Child]:
        """Stop all children with SIGTERM, and with SIGKILL those that take longer than ``timeout`` seconds.

        Returns the latter.
        """
        self._is_stopping = True
        for child in self._children.values():
            if child.pid is not None and child.process is not None:
                child.process.send_signal(signal.SIGTERM)
        _, late = await asyncio.wait(self._watchers, timeout=timeout) if self._watchers else (set(), set())
        killed = self.kill_all()
        if late:
            await asyncio.wait(late)
        return killed

    async def _keep(self, child: Child) -> None:
        while not self._is_stopping:
            now = time.monotonic()
            child.starts = [at for at in child.starts if now - at < WINDOW] + [now]
            code = await self._run(child)
            if self._is_stopping:
                return
            if code == 78 or len(child.starts) > RESTARTS:
                self._say(child, f"ended with code {code} and is not started again")
                self.failed.set()
                return
            pause = min(0.2 * 2 ** (len(child.starts) - 1), 5.0)
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            self._say(child, f"{how}; starting it again in {pause:g} s")
            await asyncio.sleep(pause)

    def _say(self, child: Child, what: str) -> None:
        if self._log is None:
            log.warning("%s %s", child.name, what)
        else:
            self._log.write(child, what)

    async def _run(self, child: Child) -> int:
        pipe = None if self._log is None else asyncio.subprocess.PIPE
        child.process = await asyncio.create_subprocess_exec(
            *child.command,
            env=dict(child.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=None if pipe is None else asyncio.subprocess.STDOUT,
            pass_fds=child.files,
            limit=LONGEST_LINE,
            # Ctrl-C in the terminal is for us; we tell the children, in order.
            start_new_session=True,
        )
        if self._is_stopping:
            child.process.terminate()  # stop() came too early to know it
        # Should we be killed, nobody else would tell it to stop.
        watcher = await asyncio.to_thread(watch, child.process.pid, signal.SIGTERM)
        try:
            if self._log is not None and child.process.stdout is not None:
                async for line in _lines(child.process.stdout):
                    self._log.write(child, line)
            return await child.process.wait()
        finally:
            watcher.kill()
            await asyncio.to_thread(watcher.communicate)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """The lines of ``stream``. All of it is read, whatever it is: a child whose pipe is full would stand still."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than the buffer, which is empty again
            yield f"(a line of more than {LONGEST_LINE:,} bytes)"
            continue
        if not line:
            return
        yield line.decode("utf-8", "replace").rstrip()


class Log:
    """Where the lines of children go."""

    def __init__(self, *, path: str | None = None) -> None:
        self._file = open(path, "a", encoding="utf-8") if path else None  # noqa: SIM115 - open as long as we are
        self._width = 0
        self._is_terminal = sys.stderr.isatty()

    def write(self, child: Child, line: str) -> None:
        """Write one line of a child."""
        self._width = max(self._width, len(child.name))
        if self._file:
            self._file.write(f"{child.name:{self._width}} | {line}\n")
            self._file.flush()
        else:
            name = click.style(f"{child.name:{self._width}} | ", fg=child.colour)
            click.echo(name + line, err=True, color=self._is_terminal)

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file:
            self._file.close()
