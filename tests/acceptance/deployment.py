"""A deployment of real processes: started, killed, paused and started again, and asked what became of the tasks.

Every wait is for a condition: a line in a log, an answer, a row. How long it may take is only the end of patience.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, LiteralString
from urllib.parse import urlsplit

import httpx2
import psycopg
import redis

from postroad.core.servers import watch
from postroad.core.settings import Settings

ROOT = Path(__file__).parents[2]

PATIENCE = 45.0
"""Seconds that a condition may take on a machine with other work."""

ALL = "--all"

POSTROAD = (sys.executable, "-m", "postroad.cli")


def wait_until(condition: Callable[[], Any], what: str, *, seconds: float = PATIENCE, poll: float = 0.02) -> Any:
    """The first true value of ``condition()``; fails with ``what`` if there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        if value := condition():
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(poll)


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended. ``out`` is its stdout and ``err`` its stderr."""

    code: int
    out: str
    err: str


class Process:
    """One process of the deployment, under a name; it may be started again after its end. Its log is one file."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: dict[str, str],
        folder: Path,
        cwd: Path,
        *,
        program: Sequence[str] = POSTROAD,
    ) -> None:
        self.name = name
        self.arguments = arguments
        self.environment = environment
        self._cwd = cwd
        self._program = program
        self._path = folder / f"{name}.log"
        self._path.touch()
        self._popen: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        """Its process id, also after its end."""
        assert self._popen is not None
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        """False before its start and after its end."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def code(self) -> int | None:
        """Its exit code, minus the signal if it was killed by one; ``None`` while it runs."""
        return None if self._popen is None else self._popen.poll()

    @property
    def log(self) -> str:
        """What it has written since its last start."""
        with self._path.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode("utf-8", "replace")

    @property
    def whole_log(self) -> str:
        """What it has written since its first start."""
        return self._path.read_text("utf-8", "replace")

    def start(self) -> None:
        """Start it; does not wait for anything."""
        assert not self.is_running
        with self._path.open("ab") as log:
            self._log_start = log.tell()
            self._popen = subprocess.Popen(
                [*self._program, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self._cwd,
                start_new_session=True,
            )
        self._watch()

    def _watch(self) -> None:
        """See to it that the process does not outlive a run of tests that is killed."""
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
        self._watcher = watch(self.pid, signal.SIGKILL) if self.is_running else None

    def await_line(self, text: str, *, seconds: float = PATIENCE) -> None:
        """Wait until it has written ``text``; fails if it ends before."""

        def said() -> bool:
            is_running = self.is_running
            if text in self.log:
                return True
            assert is_running, f"{self.name} ended without saying {text!r}:\n{self.log[-2000:]}"
            return False

        wait_until(said, f"{self.name} says {text!r}", seconds=seconds)

    def send(self, number: signal.Signals) -> None:
        """Send a signal; to nobody, if it has ended."""
        assert self._popen is not None
        self._popen.send_signal(number)

    def pause(self) -> None:
        """Stop it in its tracks; it does not notice."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it with SIGKILL, and return when it is gone."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()
            self._watch()

    def terminate(self, *, seconds: float = PATIENCE) -> int:
        """Send SIGTERM; its exit code."""
        self.send(signal.SIGTERM)
        return self.wait(seconds=seconds)

    def wait(self, *, seconds: float = PATIENCE) -> int:
        """Wait for its end; its exit code, minus the signal if it was killed by one."""
        assert self._popen is not None
        code = self._popen.wait(seconds)
        self._watch()
        return code


class Deployment:
    """The processes of one deployment against the servers of ``settings``, with the pipelines of ``settings.app``.

    The database must have been migrated. ``folder`` keeps the logs.
    """

    def __init__(self, settings: Settings, folder: Path, *, cwd: Path = ROOT) -> None:
        self.settings = settings
        self.folder = folder
        self.processes: dict[str, Process] = {}
        self._cwd = cwd
        self._client: httpx2.Client | None = None
        self._connection: psycopg.Connection[Any] | None = None

    # Processes

    def process(self, name: str, *arguments: str, **changes: Any) -> Process:
        """Start a process with these settings, some of them changed, and do not wait for it."""
        environment = self.environment(**changes)
        made = Process(name, arguments, environment, self.folder, self._cwd)
        self.processes[name] = made
        made.start()
        return made

    def serve(self) -> Process:
        """Start the intake, and wait until it is ready."""
        intake = self.process("intake", "serve", port=self.settings.port)
        self.await_intake(intake)
        return intake

    def await_intake(self, intake: Process) -> None:
        """Wait until the intake is ready. It keeps its port from then on."""
        intake.await_line("accepting tasks on ")
        port = int(intake.log.partition("accepting tasks on http://127.0.0.1:")[2].partition('"')[0])
        self.settings = replace(self.settings, port=port)
        intake.environment |= {"POSTROAD_PORT": str(port)}
        wait_until(lambda: self.get("/readyz").status_code == 200, "the intake is ready")

    def relay(self, name: str = "relay") -> Process:
        """Start a relay, and wait until it works or waits for its turn."""
        relay = self.process(name, "relay")
        wait_until(lambda: "relaying from" in relay.log or "another relay works" in relay.log, f"{name} is up")
        return relay

    def stage(self, *names: str, name: str = "worker", **changes: Any) -> Process:
        """Start a worker of these stages, of all by default, and wait until it reads."""
        worker = self.process(name, "stage", *(names or (ALL,)), **changes)
        worker.await_line("working on")
        return worker

    def start(self, *workers: str, **changes: Any) -> None:
        """Start an intake, a relay, and a worker for each of ``workers``, or one for all stages; wait for them.

        ``changes`` are to the settings of the workers.
        """
        intake = self.process("intake", "serve", port=self.settings.port)
        relay = self.process("relay", "relay")
        wanted = {one: one for one in workers} or {"worker": ALL}
        started = [self.process(name, "stage", stage, **changes) for name, stage in wanted.items()]
        self.await_intake(intake)
        relay.await_line("relaying from")
        for worker in started:
            worker.await_line("working on")

    def revive(self) -> int:
        """Start again whatever has ended; how many these were. For the condition of a wait."""
        ended = [process for process in self.processes.values() if not process.is_running]
        for process in ended:
            process.start()
        return len(ended)

    def close(self) -> None:
        """Kill whatever still runs."""
        if self._client is not None:
            self._client.close()
        if self._connection is not None:
            self._connection.close()
        for process in self.processes.values():
            process.kill()

    def environment(self, **changes: Any) -> dict[str, str]:
        """The environment of a process: the settings, some of them changed, and nothing else of ours."""
        ours = ("POSTROAD_", "DATABASE_URL", "DIRECT_URL", "REDIS_URL", "PG", "OTEL_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        python = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        return inherited | python | replace(self.settings, **changes).environment()

    def run(
        self,
        *arguments: str,
        module: str = "postroad.cli",
        input: str | None = None,
        environment: dict[str, str] | None = None,
        seconds: float = PATIENCE,
    ) -> Finished:
        """Run a command to its end, by default one of postroad's."""
        ended = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            input=input if input is not None else "",
            capture_output=True,
            text=True,
            env=environment or self.environment(),
            cwd=self._cwd,
            timeout=seconds,
        )
        return Finished(ended.returncode, ended.stdout, ended.stderr)

    def submitter(self, pipeline: str, source: IO[Any], *arguments: str) -> "subprocess.Popen[str]":
        """Start ``postroad submit``, which reads the lines of ``source``; our end of that is closed."""
        with source:
            return subprocess.Popen(
                [sys.executable, "-m", "postroad.cli", "submit", pipeline, "-", "--url", self.url, *arguments],
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=self.environment(),
                cwd=self._cwd,
            )

    # HTTP

    @property
    def url(self) -> str:
        """Where the intake listens."""
        return f"http://127.0.0.1:{self.settings.port}"

    @property
    def client(self) -> httpx2.Client:
        """A client of the intake."""
        if self._client is None:
            # Whoever started us may have a proxy in the environment.
            self._client = httpx2.Client(timeout=30, trust_env=False)
        return self._client

    def get(self, path: str) -> httpx2.Response:
        """Ask the intake."""
        return self.client.get(self.url + path)

    def submit(self, pipeline: str, *payloads: Any) -> list[str]:
        """Submit tasks over HTTP, in one batch; their ids. All of them must be accepted."""
        lines = "".join(json.dumps({"pipeline": pipeline, "payload": payload}) + "\n" for payload in payloads)
        answer = self.client.post(
            f"{self.url}/v1/tasks:batch", content=lines, headers={"Content-Type": "application/x-ndjson"}
        )
        assert answer.status_code == 200, answer.text
        answers = [json.loads(line) for line in answer.text.splitlines()]
        assert all(one["status"] == 202 for one in answers), answers
        return [one["task_id"] for one in answers]

    # What is true

    def query(self, statement: LiteralString, *parameters: Any) -> list[tuple[Any, ...]]:
        """Rows from Postgres, on a connection that is kept, and made anew if a test has cut it."""
        if self._connection is not None:
            try:
                return self._connection.execute(statement, parameters or None).fetchall()
            except psycopg.OperationalError:
                self._connection.close()
        self._connection = psycopg.connect(self.settings.database_url, autocommit=True, prepare_threshold=None)
        return self._connection.execute(statement, parameters or None).fetchall()

    def execute(self, statement: LiteralString) -> None:
        """Run a statement that returns nothing."""
        with psycopg.connect(self.settings.database_url, autocommit=True) as connection:
            connection.execute(statement)

    def redis(self) -> "redis.Redis":
        """A client of Redis, to do harm with."""
        return redis.Redis.from_url(self.settings.redis_url, decode_responses=True)

    def statuses(self) -> dict[str, int]:
        """How many tasks there are of each status."""
        return dict(self.query("select status, count(*) from postroad.task group by status"))

    def finished(self) -> int:
        """How many tasks are terminal."""
        (row,) = self.query("select count(*) from postroad.task where status in ('completed', 'failed', 'cancelled')")
        return int(row[0])

    def wait_until_finished(
        self, tasks: int, *, meanwhile: Callable[[], object] = lambda: None, seconds: float = PATIENCE
    ) -> dict[str, int]:
        """Wait until ``tasks`` tasks are there and all are terminal; how many there are of each status.

        ``meanwhile`` is called before every look.
        """

        def is_finished() -> bool:
            meanwhile()
            statuses = self.statuses()
            opened = statuses.get("pending", 0) + statuses.get("in_progress", 0)
            return not opened and sum(statuses.values()) == tasks

        try:
            wait_until(is_finished, f"{tasks} tasks are terminal", seconds=seconds, poll=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}; there are {self.statuses()}: {self.stuck()}") from None
        return self.statuses()

    def stuck(self) -> list[tuple[Any, ...]]:
        """A few of the tasks that are open, for the message of a failure."""
        return self.query(
            "select task_id, status, stage_status, stages_done, version, updated_at from postroad.task"
            " where status in ('pending', 'in_progress') order by task_id limit 5"
        )

    def audit(self) -> None:
        """Run ``postroad audit``; fails if an invariant is violated."""
        ended = self.run("audit", "--json")
        violations = [finding for finding in json.loads(ended.out) if finding["violations"]]
        assert not violations, violations
        assert ended.code == 0, ended.err


def address(url: str) -> str:
    """Host and port of a server's URL, as log lines have them."""
    return urlsplit(url).netloc.rpartition("@")[2]


def tails(processes: Iterable[Process], lines: int = 25) -> str:
    """The last lines of each process, for the report of a failure."""
    parts = []
    for process in processes:
        last = process.whole_log.splitlines()[-lines:]
        parts.append(f"--- {process.name}\n" + "\n".join(line[:400] for line in last))
    return "\n".join(parts) + "\n"
