"""``postroad up`` and ``postroad demo``: everything on one machine, with servers of their own."""

import contextlib
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from postroad.core.settings import Settings
from tests.acceptance.deployment import Deployment, Process, wait_until

APP = """
from postroad import Pipeline, Task

greeting = Pipeline("greeting")


@greeting.stage()
async def greet(task: Task) -> str:
    return f"hello, {task.payload}"


@greeting.stage(after="greet")
def shout(task: Task) -> str:
    return task.results["greet"].upper()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with an app, in a place that root's Postgres may enter."""
    with tempfile.TemporaryDirectory(prefix="postroad-up-") as made:
        Path(made, "greetings.py").write_text(APP)
        yield Path(made)


@pytest.fixture
def home(folder: Path, tmp_path: Path) -> Iterator[Deployment]:
    """Nothing runs, and no server is named."""
    deployment = Deployment(Settings(port=0), tmp_path, cwd=folder)
    yield deployment
    deployment.close()


def up(home: Deployment) -> Process:
    """Start ``postroad up``, and wait until it is up."""
    process = home.process("up", "up", "greetings.py")
    process.await_line("Ctrl-C stops it all.")
    (port,) = re.findall(r"^intake +http://127\.0\.0\.1:(\d+)/v1/tasks$", process.log, flags=re.MULTILINE)
    home.settings = Settings(port=int(port))
    return process


def greeted(home: Deployment, task: str) -> list[object]:
    """The results of a task, once it is completed."""
    shown = wait_until(
        lambda: (found := home.get(f"/v1/tasks/{task}").json())["status"] == "completed" and found,
        "the task is completed",
    )
    return [run["result"] for run in shown["stages"]]


def family(process: Process) -> list[psutil.Process]:
    """All that it started, and what that started."""
    children: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
    return children


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if lives(one)]


def lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def test_up_runs_everything_leaves_nothing_running_and_finds_its_data_again(home: Deployment, folder: Path) -> None:
    first = up(home)
    (task,) = home.submit("greeting", "road")
    assert greeted(home, task) == ["hello, road", "HELLO, ROAD"]
    children = family(first)
    names = {" ".join(one.cmdline()[3:]) for one in children if "postroad.cli" in one.cmdline()}
    assert names == {"serve", "relay", "stage greeting.greet", "stage greeting.shout"}

    first.send(signal.SIGINT)  # the terminal's Ctrl-C
    assert first.wait() == 0
    wait_until(lambda: not alive(children), "all processes have ended", seconds=10)
    assert (folder / ".postroad").is_dir()

    second = up(home)
    assert greeted(home, task) == ["hello, road", "HELLO, ROAD"]
    (other,) = home.submit("greeting", "again")
    assert greeted(home, other) == ["hello, again", "HELLO, AGAIN"]
    children = family(second)

    # And when it has no chance to stop anything.
    second.kill()
    wait_until(lambda: not alive(children), "all processes have ended")


@pytest.mark.timeout(180)
def test_the_demo_kills_processes_and_prints_that_every_invariant_holds(tmp_path: Path) -> None:
    demo = Deployment(Settings(), tmp_path)

    ended = demo.run("demo", "--tasks", "60", "--lease", "2s", "--log", str(tmp_path / "log"), seconds=120)

    assert ended.code == 0, ended.out + ended.err[-2000:]
    *checks, last = ended.out.splitlines()
    assert checks[0].startswith("ok   60 accepted = 60 terminal (")
    assert len(checks) > 15
    assert all(line.startswith("ok   ") for line in checks)
    assert re.fullmatch(r"60 tasks in \d+\.\d s, \d+ retries, 3 processes killed", last)
    assert len(re.findall(r"kill -9 \d+: ", ended.err)) == 3
    assert "Traceback" not in (tmp_path / "log").read_text()
