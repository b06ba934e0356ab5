"""Requests of a job log through the provisioning example, while its processes are killed and Redis is wiped."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from examples.provisioning.migrate import migrate
from tests.acceptance.deployment import ROOT, Deployment
from tests.acceptance.havoc import Havoc

REQUESTS = 150
SLICES = 3
EVERY = 0.8
"""Seconds between two faults."""

WORKERS = tuple(f"provisioning.{stage}" for stage in ("validate", "allocate", "notify", "launch"))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log in the Standard Workload Format: that of POSTROAD_TEST_SWF if that is set, else one made here."""
    if given := os.environ.get("POSTROAD_TEST_SWF"):
        return Path(given)
    made = tmp_path / "made.swf"
    made.write_text("; a log that no machine wrote\n" + "".join(jobs(random.Random(1993))))
    return made


def jobs(draw: random.Random) -> Iterator[str]:
    """Jobs as real logs have them: small and large ones, with unknown users and processors among them."""
    for number in range(1, REQUESTS + 1):
        fields = [-1] * 18
        fields[0] = number
        fields[1] = number * 30
        fields[3] = draw.randint(1, 5000)
        fields[4] = draw.choice((1, 1, 2, 4, 8, 16, 32, 64, 128, 128, 0, -1))
        fields[10] = 1
        fields[11] = draw.choice((-1, *range(1, 30), 705))
        fields[12] = 1
        yield " ".join(map(str, fields)) + "\n"


def test_a_job_log_goes_through_while_processes_are_killed_and_redis_is_wiped(forgetful: Deployment, log: Path) -> None:
    forgetful.settings = replace(forgetful.settings, app="examples.provisioning")
    migrate(forgetful.settings.database_url)
    forgetful.start(*WORKERS)
    havoc = Havoc(forgetful, workers=WORKERS, seed=1993)

    tally = 0
    for number in range(SLICES):
        tally += submit_slice(forgetful, log, number, lambda: strike(forgetful, havoc))
    while forgetful.finished() < tally and sum(havoc.struck.values()) < 30:
        strike(forgetful, havoc)
    forgetful.wait_until_finished(tally, meanwhile=forgetful.revive)

    assert len(havoc.struck) == 3, havoc.struck
    twice = forgetful.query(
        "select task_id, stage from postroad.outbox where type = 'StageCompleted' group by 1, 2 having count(*) > 1"
    )
    assert twice == []
    checked = forgetful.run(module="examples.provisioning.invariants")
    assert checked.code == 0, checked.out + checked.err
    forgetful.audit()


def submit_slice(deployment: Deployment, log: Path, number: int, meanwhile: Callable[[], None]) -> int:
    """``python -m examples.provisioning.swf LOG | postroad submit provisioning -``; how many were accepted."""
    size = REQUESTS // SLICES
    command = [sys.executable, "-m", "examples.provisioning.swf", str(log)]
    command += ["--offset", str(number * size), "--limit", str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as reading:
        assert reading.stdout is not None
        with deployment.submitter("provisioning", reading.stdout) as submitting:
            while submitting.poll() is None:
                meanwhile()
            out, err = submitting.communicate()
    assert (reading.returncode, submitting.returncode) == (0, 0), err
    tally = json.loads(out)
    assert (tally["accepted"], tally["refused"]) == (size, 0)
    return size


def strike(deployment: Deployment, havoc: Havoc) -> None:
    """One fault, and a while in which the deployment may get on."""
    havoc.strike()
    deployment.revive()
    # Not for luck: this is the rate at which things go wrong.
    time.sleep(EVERY)
