"""The doctor without servers: what it makes of its checks, and that its document names each of them."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from postroad import Settings
from postroad.cli.doctor import document, exit_code, lines
from postroad.core.errors import SettingsError
from postroad.doctor import examination
from postroad.doctor.checks import CHECKS
from postroad.doctor.examination import Check, Needs, Result, examine
from postroad.doctor.finding import Finding, Level, error, listed, many, ok, told, told_bytes, unknown, warning
from postroad.doctor.patient import Patient

DOCUMENT = Path(__file__).parents[2] / "docs" / "doctor.md"

NOWHERE = Settings(database_url="postgresql://127.0.0.1:1/x", redis_url="redis://127.0.0.1:1")


def check(name: str, *findings: Finding, group: str = "Work", needs: Needs = Needs.NOTHING) -> Check:
    """A check that finds just that."""

    async def run(patient: Patient) -> Sequence[Finding]:
        return findings

    return Check(name, group, needs, run)


def failing(run: Callable[[Patient], Awaitable[Sequence[Finding]]]) -> Check:
    return Check("failing", "Work", Needs.NOTHING, run)


async def made(*checks: Check) -> list[Result]:
    patient = Patient(NOWHERE)
    try:
        return await examine(patient, checks)
    finally:
        await patient.aclose()


def result(name: str, *findings: Finding, group: str = "Work") -> Result:
    return Result(check(name, group=group), findings, 0.0123)


async def test_a_check_that_breaks_says_so_and_the_next_is_made() -> None:
    async def breaks(patient: Patient) -> Sequence[Finding]:
        raise KeyError("what INFO did not say")

    broken, after = await made(failing(breaks), check("after", ok("fine")))

    assert broken.level is Level.UNKNOWN
    assert "KeyError: 'what INFO did not say'" in broken.findings[0].saw
    assert after.level is Level.OK


async def test_a_check_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(patient: Patient) -> Sequence[Finding]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(examination, "TIMEOUT", 0.01)
    hung, after = await made(failing(hangs), check("after", ok("fine")))

    assert hung.level is Level.UNKNOWN
    assert "longer than" in hung.findings[0].saw
    assert after.level is Level.OK


async def test_of_a_server_that_is_away_nobody_asks_again() -> None:
    results = await made(
        check("postgres-answers", error("Postgres does not answer", "start it"), needs=Needs.POSTGRES),
        check("revision", ok("asked"), needs=Needs.POSTGRES),
        check("markers", ok("asked"), needs=Needs.BOTH),
        check("eviction", ok("asked"), needs=Needs.REDIS),
    )

    assert [one.level for one in results] == [Level.ERROR, Level.UNKNOWN, Level.UNKNOWN, Level.OK]
    assert results[2].findings[0].saw == "Postgres does not answer"
    assert exit_code(results, strict=False) == 69


def test_servers_that_nobody_named_are_a_matter_of_the_settings() -> None:
    with pytest.raises(SettingsError, match="REDIS_URL is not set"):
        Patient(Settings(database_url="postgresql://127.0.0.1/x"))
    with pytest.raises(SettingsError, match="DATABASE_URL is not set"):
        Patient(Settings(redis_url="redis://127.0.0.1"))


@pytest.mark.parametrize(
    ("finding", "code", "strict"),
    [
        (ok("fine"), 0, 0),
        (unknown("who knows", "look"), 0, 5),
        (warning("hm", "see to it"), 0, 5),
        (error("no", "mend it"), 5, 5),
    ],
)
def test_exit_codes(finding: Finding, code: int, strict: int) -> None:
    results = [result("one", ok("fine")), result("two", ok("fine"), finding)]

    assert exit_code(results, strict=False) == code
    assert exit_code(results, strict=True) == strict


RESULTS = [
    result("pooler", ok("a session"), group="Postgres"),
    result("role-settings", warning("a short timeout", "raise it"), ok("the rest"), group="Postgres"),
    result("ring", unknown("Redis does not answer", "see above")),
    result("pruning", unknown("Redis does not answer", "see above")),
    result("relay", error("none", "start one")),
]


def test_people_are_told_what_is_to_be_said_with_what_to_do() -> None:
    assert [re.sub(r" {2,}", "  ", line) for line in lines(RESULTS, verbose=False)] == [
        "Postgres: 1 of 2 checks ok",
        "  warning  role-settings  a short timeout",
        "  → raise it",
        "Work: 0 of 3 checks ok",
        "  unknown  2 checks  Redis does not answer",
        "  → see above",
        "  error  relay  none",
        "  → start one",
        "",
        "5 checks: 1 ok, 2 unknown, 1 warning, 1 error",
    ]


def test_with_verbose_they_are_told_what_is_well_too() -> None:
    told = "\n".join(lines(RESULTS, verbose=True))

    assert "a session" in told
    assert "the rest" in told


def test_programs_get_one_document() -> None:
    shown = json.loads(json.dumps(document(RESULTS)))

    assert shown["status"] == "error"
    assert shown["checks"][1] == {
        "check": "role-settings",
        "group": "Postgres",
        "status": "warning",
        "seconds": 0.012,
        "findings": [
            {"status": "warning", "saw": "a short timeout", "do": "raise it"},
            {"status": "ok", "saw": "the rest", "do": None},
        ],
    }


def test_each_check_has_a_name_of_its_own_and_each_group_is_in_one_piece() -> None:
    assert Counter(one.name for one in CHECKS).most_common(1)[0][1] == 1
    groups = [one.group for one in CHECKS]
    assert [group for place, group in enumerate(groups) if place == 0 or groups[place - 1] != group] == list(
        dict.fromkeys(groups)
    )


def test_the_document_explains_each_check_in_its_group_and_no_other() -> None:
    documented = []
    group = ""
    for line in DOCUMENT.read_text("utf-8").splitlines():
        if line.startswith("## "):
            group = line[3:]
        elif match := re.match(r"\| `([a-z-]+)` \|", line):
            documented.append((group, match[1]))
            assert len([cell for cell in line.strip("|").split(" | ") if cell.strip()]) == 3, line

    assert documented == [(one.group, one.name) for one in CHECKS]


def test_numbers_in_words() -> None:
    assert [told(seconds) for seconds in (0.04, 9.96, 90, 150, 7200, 172_800)] == [
        "0.0 s", "10.0 s", "90 s", "2 min", "2 h", "2 d",
    ]  # fmt: skip
    assert [told_bytes(count) for count in (12, 2048, 5 << 20, 3 << 30, 2 << 40)] == [
        "12 B", "2 KiB", "5 MiB", "3 GiB", "2.0 TiB",
    ]  # fmt: skip
    assert [many(1, "key"), many(1200, "key"), many(2, "process")] == ["1 key", "1,200 keys", "2 processes"]
    assert many(1, "key", is_cut=True) == "1 or more keys"
    assert listed(["a", "b"]) == "a, b"
    assert listed([*"abcdefg"]) == "a, b, c, d, e and 2 more"
