"""``python -m examples.provisioning.swf LOG``: the jobs of a real machine, as tasks to submit.

LOG is in the Standard Workload Format (https://www.cs.huji.ac.il/labs/parallel/workload/swf.html), plain or
compressed with gzip. Each job becomes a line for ``postroad submit provisioning -``. -1, the format's "unknown",
becomes null; that and zeros are real requests too, for the pipeline to reject.

The idempotency key is made of the log's name and the job's number: a log that is submitted again makes no task
twice. So a bad line stops nothing: it is named on stderr, the jobs around it are printed, and the exit code is 1. Mend
the line and run the same command once more.
"""

import argparse
import gzip
import json
import re
import signal
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

FIELDS = 18

JOB, SECONDS, PROCESSORS, STATUS, USER, GROUP = 0, 3, 4, 10, 11, 12
"""Places of the fields that we use."""

PARTS = (2, 3, 4)
"""What ``STATUS`` is on lines about a part of a job, which follow the line about the whole."""

NAMED = 20
"""So many bad lines are named, and the rest only counted: LOG may be no log at all."""

_INTEGER = re.compile(r"-?[0-9]{1,18}")


class UnreadableError(Exception):
    """The log is not there, or is cut off or damaged; what could be read has been printed."""


def log_name(path: Path) -> str:
    """The file's name without its endings, in the characters of an idempotency key."""
    name = path.name.removesuffix(".gz").removesuffix(".swf")
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:200]


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a log, one at a time. Raises ``UnreadableError``."""
    try:
        with path.open("rb") as file:
            is_compressed = file.peek(2)[:2] == b"\x1f\x8b"
            lines: Iterable[bytes] = gzip.GzipFile(fileobj=file) if is_compressed else file
            for line in lines:
                # Everything is ASCII but for names in comments, in whatever encoding their author had.
                yield line.decode("ascii", "replace")
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise UnreadableError(f"{path} cannot be unpacked: {error}") from error


def read_tasks(lines: Iterable[str], name: str, report: Callable[[int, str], object]) -> Iterator[dict[str, Any]]:
    """A task for each job in ``lines``; ``report(line_number, reason)`` is told of the bad ones."""
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith(";"):
            continue
        try:
            fields = _fields(line)
        except ValueError as error:
            report(number, str(error))
            continue
        if fields[STATUS] not in PARTS:
            yield _task(fields, name)


def _fields(line: str) -> dict[int, int | None]:
    fields = line.split()
    if len(fields) != FIELDS:
        raise ValueError(f"{len(fields)} fields instead of {FIELDS}")
    values: dict[int, int | None] = {}
    for place in (JOB, SECONDS, PROCESSORS, STATUS, USER, GROUP):
        if not _INTEGER.fullmatch(fields[place]):
            raise ValueError(f"field {place + 1} is no whole number: {fields[place]!r:.40}")
        value = int(fields[place])
        values[place] = None if value == -1 else value
    if values[JOB] is None:
        raise ValueError("field 1, the job's number, is unknown")
    return values


def _task(fields: dict[int, int | None], name: str) -> dict[str, Any]:
    user, group = fields[USER], fields[GROUP]
    return {
        "payload": {
            "job": fields[JOB],
            "user": None if user is None else f"user{user}",
            "group": None if group is None else f"group{group}",
            "processors": fields[PROCESSORS],
            "seconds": fields[SECONDS],
        },
        "idempotency_key": f"{name}-{fields[JOB]}",
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the tasks of the log that ``arguments`` name. Returns the exit code."""
    options = _parser().parse_args(arguments)
    path: Path = options.log
    failures = 0

    def report(number: int, reason: str) -> None:
        nonlocal failures
        failures += 1
        if failures <= NAMED:
            print(f"{path}:{number}: {reason}", file=sys.stderr)

    tasks = read_tasks(read_lines(path), log_name(path), report)
    end = None if options.limit is None else options.offset + options.limit
    try:
        for task in islice(tasks, options.offset, end):
            print(json.dumps(task))
    except UnreadableError as error:
        print(error, file=sys.stderr)
        return 1
    if failures > NAMED:
        print(f"{path}: and {failures - NAMED} more bad lines", file=sys.stderr)
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.provisioning.swf",
        description="Print the jobs of a log in the Standard Workload Format, for postroad submit provisioning -",
        epilog="A bad line is named on stderr and left out; the exit code is then 1.",
    )
    parser.add_argument("log", metavar="LOG", type=Path, help="the log, plain or compressed with gzip")
    parser.add_argument("--limit", metavar="N", type=_count, help="print N jobs at most")
    parser.add_argument("--offset", metavar="N", type=_count, default=0, help="leave out the first N jobs")
    return parser


def _count(text: str) -> int:
    if not _INTEGER.fullmatch(text) or int(text) < 0:
        raise argparse.ArgumentTypeError(f"not a number of jobs: {text!r}")
    return int(text)


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        # End like any other filter when the reader of our output has seen enough.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
