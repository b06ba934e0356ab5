"""A stage that is a program: each attempt is one run of it."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

from ..core import logs, telemetry
from ..core.command_stage import REJECT, SNOOZE, CommandStage
from ..core.errors import DeclarationError, SettingsError, UnstorableError
from ..core.jsontext import decode
from ..core.outcome import Reject, Retry, Snooze
from ..core.pipeline import Stage
from ..core.settings import expanded, inherited
from ..core.task import Task
from .runner import ERROR_LIMIT, RESULT_LIMIT

NOT_YET = 30.0
"""Seconds until a program that said "not yet" is run again."""

DRAIN = 1.0
"""Seconds that what a program printed may take to arrive after it has ended."""


class ProgramError(Exception):
    """A program that failed; kept with the attempt, with the end of what it said."""


class CommandHandler:
    """Runs the program of ``stage``."""

    def __init__(self, stage: Stage, program: CommandStage) -> None:
        self._stage = stage
        self._command = program.command
        self._directory = None if program.directory is None else Path(program.directory)
        try:
            own = {name: expanded(value) for name, value in program.environment.items()}
        except SettingsError as error:
            raise DeclarationError(f"stage {stage.full_name!r}: {error}") from None
        self._environment = inherited() | own
        if self._directory is not None and not self._directory.is_dir():
            raise DeclarationError(f"stage {stage.full_name!r}: there is no folder {program.directory}")
        if not self._is_there(program.command[0]):
            raise DeclarationError(f"stage {stage.full_name!r}: there is no program {program.command[0]!r} to run")

    async def run(self, task: Task) -> Any:
        """One attempt: what the program printed. Raises ``Retry``, ``Snooze`` or ``Reject``."""
        variables = {
            "TASK_ID": str(task.task_id),
            "TASK_ATTEMPT": str(task.attempt),
            "IDEMPOTENCY_KEY": task.idempotency_key,
            "TRACEPARENT": telemetry.current(task.traceparent),
        }
        loop = asyncio.get_running_loop()
        transport, talk = await loop.subprocess_exec(
            Talk,
            *self._command,
            cwd=self._directory,
            env=self._environment | variables,
            start_new_session=True,  # so that its children can be killed with it
        )
        try:
            _tell(transport, json.dumps(task.document()).encode() + b"\n")
            await talk.exited.wait()
            # What it printed is still on its way, or a child of it is still there and holds what it printed to.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN):
                    await talk.silent.wait()
        finally:
            _kill(transport)
            await talk.exited.wait()
            transport.close()
        return self._outcome(transport.get_returncode() or 0, bytes(talk.output), bytes(talk.said))

    def _outcome(self, code: int, output: bytes, said: bytes) -> Any:
        text = said.decode("utf-8", "replace").strip()
        for line in text.splitlines()[-logs.KEPT_LINES :]:
            logs.keep(line)
        reason = text.splitlines()[-1].strip() if text else ""
        cause = ProgramError(f"{_end(code)}\n{text[-ERROR_LIMIT:]}")
        if code == REJECT:
            raise Reject(reason or _end(code)) from cause
        if code == SNOOZE:
            raise Snooze(NOT_YET, reason or _end(code))
        if code:
            raise Retry(f"{_end(code)}: {reason}" if reason else _end(code)) from cause
        if len(output) > RESULT_LIMIT:
            raise Reject(
                f"it printed more than {RESULT_LIMIT:,} bytes; store them elsewhere and print where"
            ) from cause
        if not output.strip():
            return None
        try:
            return decode(output)
        except UnstorableError as error:
            raise Reject(f"it printed no JSON that can be kept: {error}; logs belong to standard error") from cause

    def _is_there(self, name: str) -> bool:
        if os.sep in name:
            path = (self._directory or Path()) / name
            return path.is_file() and os.access(path, os.X_OK)
        return shutil.which(name, path=self._environment.get("PATH")) is not None


class Talk(asyncio.SubprocessProtocol):
    """Hears what a program prints and says. Not by asyncio's streams: with them an end is heard of only when all pipes
    are closed, and a child that is left behind holds them."""

    def __init__(self) -> None:
        self.output = bytearray()
        """The beginning of what it printed: more than the limit if it is too much."""
        self.said = bytearray()
        """The end of what it said on standard error."""
        self.exited = asyncio.Event()
        self.silent = asyncio.Event()
        """It has ended, and nobody can print or say anything any more."""

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1 and len(self.output) <= RESULT_LIMIT:
            self.output += data
        elif fd == 2:
            self.said += data
            del self.said[: -4 * ERROR_LIMIT]

    def process_exited(self) -> None:
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.silent.set()


def _tell(transport: asyncio.SubprocessTransport, document: bytes) -> None:
    """Hand the program its task, which it need not read."""
    pipe: Any = transport.get_pipe_transport(0)  # uvloop's is none of asyncio's classes
    pipe.write(document)
    pipe.close()


def _kill(transport: asyncio.SubprocessTransport) -> None:
    """Kill the program, and what it has started and left in its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(transport.get_pid(), signal.SIGKILL)


def _end(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
