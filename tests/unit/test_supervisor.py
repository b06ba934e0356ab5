"""Children: what they print is passed on whatever it is, and they are kept running and stopped."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from postroad.cli.supervisor import RESTARTS, Log, Supervisor


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the log goes."""
    return tmp_path / "log"


def written(path: Path) -> str:
    return path.read_text("utf-8")


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - other processes set no event
        await asyncio.sleep(0.01)


async def test_lines_of_any_length_are_passed_on_and_the_child_goes_on(path: Path) -> None:
    log = Log(path=str(path))
    supervisor = Supervisor(log=log)

    supervisor.start(
        "child", program("print('x' * 500_000)\nfor n in range(50_000): print('after', n)"), {**os.environ}
    )
    await until(lambda: "ended with code 0" in written(path))
    await supervisor.stop()
    log.close()

    lines = written(path).splitlines()
    assert lines[0].startswith("child | xxx")
    assert sum(line.count("x") for line in lines) == 500_000
    assert "child | after 49999" in lines


async def test_bytes_that_are_no_text_are_passed_on(path: Path) -> None:
    log = Log(path=str(path))
    supervisor = Supervisor(log=log)

    supervisor.start("child", program(r"import os; os.write(1, b'\xff\xfe and\r\nno newline')"), {**os.environ})
    await until(lambda: "ended with code 0" in written(path))
    await supervisor.stop()
    log.close()

    assert written(path).splitlines()[:2] == ["child | \ufffd\ufffd and", "child | no newline"]


async def test_a_child_that_dies_is_started_again_and_told_of(path: Path) -> None:
    log = Log(path=str(path))
    supervisor = Supervisor(log=log)

    child = supervisor.start("child", program("import time; print('up', flush=True); time.sleep(60)"), {**os.environ})
    await until(lambda: written(path).count("up") == 1)
    killed = supervisor.kill("child")
    await until(lambda: written(path).count("| up") == 2)
    again = child.pid
    await supervisor.stop()
    log.close()

    assert killed
    assert again not in (None, killed)
    assert child.pid is None
    assert supervisor.kill("child") is None
    assert "was killed by SIGKILL; starting it again in 0.2 s" in written(path)


@pytest.mark.parametrize(("text", "starts"), [("exit(78)", 1), ("exit(1)", RESTARTS + 1)])
async def test_a_child_that_cannot_run_is_given_up(
    path: Path, monkeypatch: pytest.MonkeyPatch, text: str, starts: int
) -> None:
    pause = asyncio.sleep
    monkeypatch.setattr("postroad.cli.supervisor.asyncio.sleep", lambda seconds: pause(0))
    log = Log(path=str(path))
    supervisor = Supervisor(log=log)

    child = supervisor.start("child", program(text), {**os.environ})
    await supervisor.failed.wait()
    await supervisor.stop()
    log.close()

    assert len(child.starts) == starts
    assert written(path).splitlines()[-1].endswith("and is not started again")


async def test_children_are_asked_to_stop_and_killed_when_they_do_not(path: Path) -> None:
    log = Log(path=str(path))
    supervisor = Supervisor(log=log)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    polite = "import time; print('up', flush=True); time.sleep(60)"

    children = [
        supervisor.start(name, program(text), {**os.environ}) for name, text in (("deaf", deaf), ("ok", polite))
    ]
    await until(lambda: written(path).count("| up") == 2)
    killed = await supervisor.stop(timeout=0.3)
    assert await supervisor.stop() == []
    log.close()

    codes = [child.process.returncode for child in children if child.process]
    assert codes == [-signal.SIGKILL, -signal.SIGTERM]
    assert killed == children[:1]


async def test_without_a_log_children_write_for_themselves_into_what_they_inherit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reading, writing = os.pipe()
    supervisor = Supervisor()
    hello = program(f"import os; os.write({writing}, b'hello')")

    supervisor.start("child", hello, {**os.environ}, files=[writing])
    said = await asyncio.to_thread(os.read, reading, 5)
    await until(lambda: "child ended with code 0; starting it again in 0.2 s" in caplog.messages)
    await supervisor.stop()
    for one in (reading, writing):
        os.close(one)

    assert said == b"hello"


async def test_nothing_may_be_stopped(path: Path) -> None:
    await Supervisor(log=Log(path=None)).stop()
