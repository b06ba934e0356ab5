"""The jobs of a log as tasks: what becomes of each field, and of lines that are none."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.provisioning import swf

HEADER = "; Version: 2.2\n; Computer: Intel iPSC/860\n;\n"

WriteLog = Callable[..., Path]


def job(
    number: object = 1,
    *,
    seconds: object = 1451,
    processors: object = 128,
    status: object = -1,
    user: object = 12,
    group: object = 2,
) -> str:
    return f"{number:>5} 0 -1 {seconds} {processors} -1 -1 -1 -1 -1 {status} {user} {group} -1 -1 -1 -1 -1\n"


@pytest.fixture
def write_log(tmp_path: Path) -> WriteLog:
    def write(*lines: str, name: str = "nasa-ipsc-1993.swf") -> Path:
        path = tmp_path / name
        text = "".join(lines).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path

    return write


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[dict[str, Any]]]:
    return lambda: [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_job_becomes_a_line_for_submit(write_log: WriteLog, printed: Callable[[], list[dict[str, Any]]]) -> None:
    path = write_log(HEADER, job(7), "\n")

    assert swf.main([str(path)]) == 0

    assert printed() == [
        {
            "payload": {"job": 7, "user": "user12", "group": "group2", "processors": 128, "seconds": 1451},
            "idempotency_key": "nasa-ipsc-1993-7",
        }
    ]


def test_a_compressed_log_gives_the_same_lines(write_log: WriteLog, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [HEADER, *(job(number) for number in range(1, 2000))]

    swf.main([str(write_log(*lines, name="log.swf"))])
    plain = capsys.readouterr().out
    swf.main([str(write_log(*lines, name="log.swf.gz"))])

    assert capsys.readouterr().out == plain
    assert plain.count("\n") == 1999


def test_unknown_values_become_null_and_zeros_stay(
    write_log: WriteLog, printed: Callable[[], list[dict[str, Any]]]
) -> None:
    unknown = job(1, seconds=-1, processors=-1, user=-1, group=-1)
    zero = job(2, seconds=0, processors=0, user=0, group=0)

    assert swf.main([str(write_log(unknown, zero))]) == 0

    assert [task["payload"] for task in printed()] == [
        {"job": 1, "user": None, "group": None, "processors": None, "seconds": None},
        {"job": 2, "user": "user0", "group": "group0", "processors": 0, "seconds": 0},
    ]


def test_lines_about_parts_of_a_job_are_no_jobs(
    write_log: WriteLog, printed: Callable[[], list[dict[str, Any]]]
) -> None:
    path = write_log(job(1, status=1), job(1, status=2), job(1, status=3), job(2, status=0))

    swf.main([str(path)])

    assert [task["payload"]["job"] for task in printed()] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--limit", "2"], [1, 2]),
        (["--offset", "3"], [4, 5]),
        (["--limit", "2", "--offset", "1"], [2, 3]),
        (["--limit", "0"], []),
        (["--offset", "9"], []),
    ],
)
def test_limit_and_offset_count_jobs(
    write_log: WriteLog,
    printed: Callable[[], list[dict[str, Any]]],
    arguments: list[str],
    expected: list[int],
) -> None:
    path = write_log(HEADER, *(job(number) for number in range(1, 6)))

    assert swf.main([str(path), *arguments]) == 0

    assert [task["payload"]["job"] for task in printed()] == expected


@pytest.mark.parametrize("arguments", [[], ["--limit", "-1", "log.swf"], ["--offset", "many", "log.swf"]])
def test_wrong_usage_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refusal:
        swf.main(arguments)

    assert refusal.value.code == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1 0 -1 1451\n", "4 fields instead of 18"),
        (job(processors="3.5"), "field 5 is no whole number: '3.5'"),
        (job(user="１２"), "field 12 is no whole number"),
        (job(seconds="1_000"), "field 4 is no whole number: '1_000'"),
        (job(seconds="9" * 5000), "field 4 is no whole number"),
        (job(-1), "field 1, the job's number, is unknown"),
    ],
)
def test_a_bad_line_is_named_and_the_others_are_printed(
    write_log: WriteLog, capsys: pytest.CaptureFixture[str], line: str, reason: str
) -> None:
    path = write_log(HEADER, job(1), line, job(3))

    assert swf.main([str(path)]) == 1

    output = capsys.readouterr()
    assert f"{path}:5: {reason}" in output.err
    assert [json.loads(text)["payload"]["job"] for text in output.out.splitlines()] == [1, 3]


def test_many_bad_lines_are_counted(write_log: WriteLog, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_log(*["no log\n"] * 1000)

    assert swf.main([str(path)]) == 1

    assert len(capsys.readouterr().err.splitlines()) == swf.NAMED + 1


def test_a_log_that_is_cut_off_gives_what_it_has_and_an_error(
    write_log: WriteLog, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_log(*(job(number, seconds=number**3) for number in range(1, 5000)), name="log.swf.gz")
    path.write_bytes(path.read_bytes()[:-2000])

    assert swf.main([str(path)]) == 1

    output = capsys.readouterr()
    assert "cannot be unpacked" in output.err
    assert output.out.startswith('{"payload": {"job": 1,')


def test_a_log_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert swf.main([str(tmp_path / "none.swf")]) == 1

    assert "none.swf cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lcg-2005.swf.gz", "lcg-2005"),
        ("a.b.swf", "a.b"),
        ("übung 1.swf", "_bung_1"),
        ("x" * 250, "x" * 200),
    ],
)
def test_the_key_has_only_characters_that_intake_takes(name: str, expected: str) -> None:
    assert swf.log_name(Path("logs", name)) == expected


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGPIPE")
def test_ends_quietly_when_nobody_reads_on(write_log: WriteLog) -> None:
    path = write_log(*(job(number) for number in range(1, 20_000)))
    command = [sys.executable, "-m", "examples.provisioning.swf", str(path)]
    root = Path(swf.__file__).parents[2]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()

    assert errors == b""
