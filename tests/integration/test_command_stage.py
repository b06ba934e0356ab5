"""Stages that are programs: what they are given, what their end comes to, and what is left of them."""

import os
import stat
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from postroad import CommandStage, Pipeline, Settings
from postroad.core.errors import DeclarationError
from postroad.testing.traffic import until
from tests.integration.line import Line, open_line


@pytest.fixture
def script(tmp_path: Path) -> Any:
    """Writes a shell script and returns its path."""

    def write(text: str) -> str:
        path = tmp_path / "work.sh"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return write


def road_by(command: list[str], *, retries: int = 0, timeout: float = 20, **options: Any) -> Pipeline:
    road = Pipeline("road")
    road.add("ride", CommandStage(command, **options), retries=retries, timeout=timeout)
    return road


async def settled(line: Line, task_id: UUID) -> tuple[str, Any, str, str]:
    """The stage run's status and result, the last reason, and the error that is kept."""

    async def is_settled() -> bool:
        return await line.run_of(task_id, "ride") is not None

    await until(is_settled)
    run = await line.run_of(task_id, "ride")
    assert run is not None
    rows = await line.road.ask(
        "select data ->> 'reason' from postroad.outbox where task_id = :id and stage = 'ride' order by position desc",
        id=task_id,
    )
    return run.status, run.result, rows[0][0] or "", run.error or ""


async def test_a_program_is_given_the_task_and_prints_its_result(script: Any, settings: Settings) -> None:
    work = script(
        """
        input=$(cat)
        printf '{"input": %s, "key": "%s", "attempt": "%s", "own": "%s", "arguments": "%s", "trace": "%s"}' \\
            "$input" "$IDEMPOTENCY_KEY" "$TASK_ATTEMPT" "$OWN" "$*" "$TRACEPARENT"
        """
    )
    road = road_by([work, "a b", "$HOME"], environment={"OWN": "${PATH}"})
    async with open_line(settings, road) as line:
        line.work()
        (task_id,) = await line.submit({"n": 1})

        assert await line.are_finished() == {"completed": 1}

        _, result, _, _ = await settled(line, task_id)
        assert result["input"]["payload"] == {"n": 1}
        assert result["input"]["task_id"] == str(task_id)
        assert (result["key"], result["attempt"]) == (f"{task_id}/ride", "1")
        assert (result["own"], result["arguments"]) == (os.environ["PATH"], "a b $HOME")
        assert [(result["trace"],)] == await line.road.ask("select traceparent from postroad.task")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exit 0", ("done", None, "")),
        ("echo '  {\"a\": [1]}  '", ("done", {"a": [1]}, "")),
        ("echo one >&2; echo 'no such user' >&2; exit 65", ("dead", None, "no such user")),
        ("echo 'not yet' >&2; exit 75", ("snoozed", None, "not yet")),
        ("echo oh >&2; exit 3", ("failed", None, "exit code 3: oh")),
        ("kill -SEGV $$", ("failed", None, "killed by SIGSEGV")),
        ("echo not json", ("dead", None, "it printed no JSON that can be kept")),
        ("head -c 3000000 /dev/zero", ("dead", None, "it printed more than 1,048,576 bytes")),
        ("head -c 3000000 /dev/zero >&2; exit 4", ("failed", None, "exit code 4")),
        ("exec 0<&-; sleep 0.1", ("done", None, "")),
    ],
)
async def test_the_end_of_a_program_is_an_outcome(
    text: str, expected: tuple[str, Any, str], script: Any, settings: Settings
) -> None:
    async with open_line(settings, road_by([script(text)], retries=3)) as line:
        line.work()
        (task_id,) = await line.submit({"large": "x" * 300_000})

        status, result, reason, error = await settled(line, task_id)

        assert (status, result) == expected[:2]
        assert expected[2] in reason
        if "one" in text:
            assert "one\nno such user" in error


async def test_a_program_is_killed_with_its_children_at_its_timeout(
    script: Any, settings: Settings, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    work = script(f"sleep 600 & echo $! >> {pids}; echo $$ >> {pids}; trap '' TERM; wait; sleep 600")
    async with open_line(settings, road_by([work], timeout=1)) as line:
        line.work()
        (task_id,) = await line.submit({})

        status, _, reason, _ = await settled(line, task_id)

        assert (status, reason) == ("dead", "timed out after 1 s")
        for pid in pids.read_text().split():
            assert not is_alive(int(pid))


async def test_what_a_program_leaves_running_does_not_hold_its_task_up(
    script: Any, settings: Settings, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    work = script(f"sleep 600 & echo $! > {pid}; echo '[7]'")
    async with open_line(settings, road_by([work])) as line:
        line.work()
        (task_id,) = await line.submit({})

        status, result, _, _ = await settled(line, task_id)

        assert (status, result) == ("done", [7])
        assert not is_alive(int(pid.read_text()))


async def test_a_worker_that_stops_leaves_no_program_behind(script: Any, settings: Settings, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    work = script(f"echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 600")
    async with open_line(settings, road_by([work], timeout=60)) as line:
        worker = line.work(grace=line.settings.grace * 0)
        (task_id,) = await line.submit({})

        async def runs() -> bool:
            return pid.exists()

        await until(runs)
        await line.stop(worker)

        assert not is_alive(int(pid.read_text()))
        assert await line.run_of(task_id, "ride") is None


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        (["/no/such/program"], {}, "there is no program '/no/such/program'"),
        (["no-such-program"], {}, "there is no program 'no-such-program'"),
        (["true"], {"directory": "/no/such/folder"}, "there is no folder /no/such/folder"),
        (["true"], {"environment": {"A": "${POSTROAD_TEST_UNSET}"}}, "POSTROAD_TEST_UNSET is not set"),
    ],
)
async def test_a_worker_does_not_start_without_what_its_program_needs(
    command: list[str], options: dict[str, Any], said: str, settings: Settings
) -> None:
    async with open_line(settings, road_by(command, **options)) as line:
        with pytest.raises(DeclarationError, match=said):
            line.work()


def is_alive(pid: int) -> bool:
    """True if the process is there, and not only its place in the table until its parent has heard."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_what_a_program_says_on_standard_error_is_the_log_of_its_attempt(script: Any, settings: Settings) -> None:
    work = script("for n in $(seq 60); do echo line $n >&2; done; echo 1")

    async with open_line(settings, road_by([work])) as line:
        line.work()
        (task_id,) = await line.submit(None)
        await settled(line, task_id)

        ((kept,),) = await line.road.ask("select data -> 'log' from postroad.outbox where type = 'StageCompleted'")
    assert kept == [f"line {number}" for number in range(11, 61)]
