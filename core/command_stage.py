"""CommandStage: a stage that is a program, run once for each attempt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .errors import DeclarationError

REJECT = 65
"""The exit code that means: never. ``EX_DATAERR`` of sysexits.h: the input is wrong."""

SNOOZE = 75
"""The exit code that means: not yet. ``EX_TEMPFAIL`` of sysexits.h: try again later."""


@dataclass(frozen=True, slots=True)
class CommandStage:
    """A stage whose work a program does: it reads the task as JSON, and prints its result as JSON, or nothing.

    ::

        media.add("convert", CommandStage(["./convert.sh", "--quality", "80"]), timeout=60, concurrency=4)

    ``command`` is a program and its arguments; there is no shell. ``environment`` is set beside the worker's own;
    its values may hold ``${NAME}`` of it. ``directory`` is where the program runs, else where the worker does.

    The program's exit code is the outcome: 0 done, 65 never (a dead letter at once), 75 not yet (no attempt is
    counted), any other a failed attempt. At the stage's timeout it is killed with its children. Raises
    ``DeclarationError``.
    """

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, kw_only=True)
    directory: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.command, str) or not self.command:
            raise DeclarationError("command is a list: the program, then each of its arguments")
        object.__setattr__(self, "command", tuple(self.command))
        for part in self.command:
            if not isinstance(part, str) or "\x00" in part:
                raise DeclarationError(
                    f"command is a list of strings, and {part!r} is none that a program can be given"
                )
        for name, value in self.environment.items():
            if not isinstance(name, str) or not name or "=" in name or "\x00" in name:
                raise DeclarationError(f"environment: {name!r} cannot name a variable")
            if not isinstance(value, str) or "\x00" in value:
                raise DeclarationError(f"environment: the value of {name!r} is no string that a program can be given")
        if self.directory is not None and not isinstance(self.directory, str | Path):
            raise DeclarationError(f"directory is the path of a folder, not {self.directory!r}")

    def __str__(self) -> str:
        return f"run {self.command[0]}"
