"""A worker that is told to stop, and one that stops without being told."""

import signal
import time
from datetime import timedelta
from pathlib import Path

from tests.acceptance.deployment import Deployment, Process, wait_until

LONG = timedelta(minutes=5)
"""A lease in which no test comes to its end: who waits for it fails."""

PIPELINES = ("hazard", "hazard-in-transaction", "hazard-in-thread")


def runs(folder: Path, process: Process) -> int:
    """How many attempts have begun in this process."""
    return len(list(folder.glob(f"*-{process.pid}")))


def test_what_is_stopped_exits_with_0_and_a_busy_worker_hands_the_rest_back_at_once(
    deployment: Deployment, tmp_path: Path
) -> None:
    deployment.start(lease=LONG, grace=timedelta(seconds=1))
    worker = deployment.processes["worker"]
    folder, soon, late = tmp_path / "begun", tmp_path / "soon", tmp_path / "late"
    folder.mkdir()
    for pipeline in PIPELINES:
        for gate in (soon, late):
            deployment.submit(pipeline, *({"gate": str(gate), "folder": str(folder)} for _ in range(5)))
    wait_until(lambda: runs(folder, worker) == 30, "all attempts have begun")
    other = deployment.stage(name="other", lease=LONG)

    began = time.monotonic()
    worker.send(signal.SIGTERM)
    worker.await_line("stopping")
    soon.touch()
    assert worker.wait() == 0
    assert time.monotonic() - began < 15, "it took much longer than its grace"
    for name in ("intake", "relay"):
        assert deployment.processes[name].terminate() == 0
    deployment.processes["relay"].start()
    late.touch()

    # Not after the lease: that is longer than anybody waits here.
    assert deployment.wait_until_finished(30) == {"completed": 30}
    assert runs(folder, other) == 15
    assert deployment.query("select distinct attempts from postroad.stage_run") == [(1,)]
    assert deployment.query("select count(*), count(distinct task_id) from effect") == [(10, 10)]
    deployment.audit()


def test_a_second_sigterm_ends_a_worker_at_once_with_130(deployment: Deployment, tmp_path: Path) -> None:
    deployment.start("hazard.cross")
    worker = deployment.processes["hazard.cross"]
    gate, folder = tmp_path / "gate", tmp_path / "begun"
    folder.mkdir()
    deployment.submit("hazard", {"gate": str(gate), "folder": str(folder)})
    wait_until(lambda: runs(folder, worker) == 1, "the attempt has begun")

    worker.send(signal.SIGTERM)
    worker.await_line("stopping")
    assert worker.terminate(seconds=10) == 130

    # Its entry is taken over after the lease.
    gate.touch()
    worker.start()
    assert deployment.wait_until_finished(1) == {"completed": 1}
    deployment.audit()


def test_a_worker_that_was_paused_for_longer_than_its_lease_changes_nothing_when_it_wakes(
    deployment: Deployment, tmp_path: Path
) -> None:
    deployment.start()
    paused = deployment.processes["worker"]
    gate, folder = tmp_path / "gate", tmp_path / "begun"
    folder.mkdir()
    for pipeline in PIPELINES:
        deployment.submit(pipeline, *({"gate": str(gate), "folder": str(folder)} for _ in range(10)))
    wait_until(lambda: runs(folder, paused) == 30, "all attempts have begun")

    paused.pause()
    gate.touch()
    other = deployment.stage(name="other")
    assert deployment.wait_until_finished(30) == {"completed": 30}
    before = deployment.query("select task_id, version, updated_at from postroad.task order by task_id")
    paused.resume()
    wait_until(lambda: paused.log.count('"superseded"') == 30, "the late outcomes are set aside")

    assert deployment.query("select task_id, version, updated_at from postroad.task order by task_id") == before
    workers = deployment.query("select distinct split_part(worker, ':', 2) from postroad.stage_run")
    assert workers == [(str(other.pid),)]
    assert deployment.query("select pid, count(*) from effect group by pid") == [(other.pid, 10)]
    # It is none the worse for it.
    other.kill()
    for pipeline in PIPELINES:
        deployment.submit(pipeline, {})
    assert deployment.wait_until_finished(33) == {"completed": 33}
    deployment.audit()
