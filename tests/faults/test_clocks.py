"""Clocks that are set by minutes while tasks travel: that of Redis, and that of our own processes.

The library of faketime stands between a process and its clock. It leaves the monotonic clock alone, as the setting of a
real clock does.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from postroad.core.servers import Valkey
from postroad.core.servers import server as server_module
from postroad.core.servers.watcher import ENVIRONMENT
from postroad.core.settings import Settings
from tests.acceptance.deployed import deployed
from tests.acceptance.deployment import Deployment, wait_until

TASKS = 40

LIBRARIES = sorted(Path("/usr/lib").glob("**/faketime/libfaketimeMT.so.1"))

pytestmark = pytest.mark.skipif(not LIBRARIES, reason="needs libfaketime: apt-get install faketime")


class Clock:
    """A clock that its processes read, set by ``set``."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set(0)

    def set(self, seconds: int) -> None:
        """Let it differ from the true time."""
        self._file.write_text(f"{seconds:+d}\n")
        self._file.chmod(0o644)

    def environment(self) -> dict[str, str]:
        """What makes a process read it."""
        return {
            "LD_PRELOAD": str(LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


@pytest.fixture
def deployment(settings: Settings, tmp_path: Path) -> Iterator[Deployment]:
    with deployed(settings, tmp_path) as deployment:
        yield deployment


def travel_while_the_clock_is_set(deployment: Deployment, clock: Clock, tmp_path: Path) -> None:
    """Minutes forth and back, with retries parked and a worker killed just then: all completes, its effects once."""
    tasks = 0
    for step in (600, -600, 0):
        flags = [{"do": "retry once", "flag": str(tmp_path / f"flag-{step}")}] * 5
        deployment.submit("road", *({"length": number, "seconds": 0.2} for number in range(TASKS)))
        deployment.submit("hazard", *flags)
        tasks += TASKS + len(flags)
        wait_until(lambda expected=tasks - TASKS: deployment.finished() > expected, "some are finished")  # type: ignore[misc]
        clock.set(step)
        deployment.processes["worker"].kill()
        deployment.submit("road", *({"length": number} for number in range(TASKS)))
        tasks += TASKS
        deployment.processes["worker"].start()
        assert deployment.wait_until_finished(tasks, seconds=60) == {"completed": tasks}, step
    roads = 6 * TASKS
    effects = deployment.query("select stage, count(*), count(distinct task_id) from effect group by stage")
    assert sorted(effects) == [("finish", roads, roads), ("survey", roads, roads)]
    deployment.audit()


def test_the_clock_of_redis_is_set(
    deployment: Deployment, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "redis"
    monkeypatch.setattr(server_module, "ENVIRONMENT", ENVIRONMENT | clock.environment())
    with Valkey(folder) as valkey:
        deployment.settings = replace(deployment.settings, redis_url=valkey.url)
        with deployment.redis() as client:
            for ahead in (86_400, 0):
                clock.set(ahead)
                # It may tell the time by what it has last seen of it.
                wait_until(lambda ahead=ahead: abs(client.time()[0] - time.time() - ahead) < 600, "its clock is set")  # type: ignore[misc]
        deployment.start()
        deployment.stage(name="other")
        travel_while_the_clock_is_set(deployment, clock, tmp_path)


def test_the_clock_of_our_processes_is_set(
    deployment: Deployment, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in clock.environment().items():
        monkeypatch.setenv(name, value)
    deployment.start()
    deployment.stage(name="other")
    travel_while_the_clock_is_set(deployment, clock, tmp_path)
