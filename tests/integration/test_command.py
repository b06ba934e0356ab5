"""The command on real servers: what it prints where, what it changes, and how it ends."""

import asyncio
import contextlib
import io
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import psutil
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from postroad import Reject, Settings
from postroad.cli.ends import AT_ONCE
from postroad.cli.main import main
from postroad.cli.stack import StackError, stack
from postroad.cli.supervisor import Log
from postroad.core.database import connect_psycopg
from postroad.intake.app import create_app
from postroad.intake.cancel import cancel
from tests.integration.door import open_port
from tests.integration.road import TRAVEL, Road, die, pipeline

ROOT = Path(__file__).parents[2]

APP = """
from postroad import Pipeline, Task

travel = Pipeline("travel")

@travel.stage()
async def pack(task: Task) -> None: ...

@travel.stage(after="pack")
async def ride(task: Task) -> None: ...
"""


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended."""

    code: object
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Its stdout, which must be one JSON document."""
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class Command:
    """Runs the command in this process, in an empty folder, with the test's servers in its environment."""

    monkeypatch: pytest.MonkeyPatch

    async def __call__(self, *arguments: object, stdin: bytes = b"", code: int = 0) -> Finished:
        """Run it with ``arguments``; it must end with ``code``."""
        finished = await asyncio.to_thread(self._run, [str(argument) for argument in arguments], stdin)
        assert finished.code == code, finished.err
        assert "Traceback" not in finished.err
        return finished

    def _run(self, arguments: list[str], stdin: bytes) -> Finished:
        out, err = io.StringIO(), io.StringIO()
        with self.monkeypatch.context() as patched, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            patched.setattr(sys, "argv", ["postroad", *arguments])
            patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            try:
                main()
            except SystemExit as end:
                return Finished(end.code, out.getvalue(), err.getvalue())
        raise AssertionError("main() returned")


@pytest.fixture
def command(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """The command, whose tables are those of ``settings``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    return Command(monkeypatch)


# migrate


async def test_migrate_makes_the_tables_once(command: Command) -> None:
    missing = await command("audit", "--schema", "roads", code=78)
    first = await command("migrate", "--schema", "roads")
    again = await command("migrate", "--schema", "roads")

    assert "schema 'roads' has no tables of postroad" in missing.err
    assert "run postroad migrate" in missing.err
    assert first == again
    assert (first.out, first.err.startswith("schema roads is at revision ")) == ("", True)
    assert {one["violations"] for one in (await command("audit", "--schema", "roads", "--json")).data} == {0}


async def test_the_sql_of_migrate_makes_the_same_tables(command: Command, settings: Settings, road: Road) -> None:
    script = (await command("migrate", "--schema", "roads", "--sql")).out

    async with await connect_psycopg(settings, application="tests") as connection:
        await connection.execute(script.encode())

    columns = "select table_name, column_name, data_type, column_default is null from information_schema.columns"
    ours, theirs = [
        await road.ask(f"{columns} where table_schema = :schema order by 1, 2", schema=schema)
        for schema in ("postroad", "roads")
    ]
    assert ours == theirs
    await command("audit", "--schema", "roads")
    await command("migrate", "--schema", "roads")


async def test_a_schema_of_a_version_to_come_is_named(command: Command, road: Road) -> None:
    await road.ask("update postroad.alembic_version set version_num = 'from_the_future'")

    assert "from_the_future" in (await command("task", "list", code=78)).err
    assert "from_the_future" in (await command("migrate", code=78)).err


async def test_what_postgres_does_not_permit_ends_with_4(command: Command, settings: Settings, road: Road) -> None:
    stranger = f"{settings.database_url}?options=-c%20role%3Dpg_monitor"

    for arguments in (["migrate", "--schema", "roads"], ["task", "list"], ["dead", "requeue", "--all"], ["audit"]):
        finished = await command(*arguments, "--database-url", stranger, code=4)
        assert "permission denied" in finished.err
        assert finished.err.count("\n") == 1


# deploy


async def test_deploy_says_what_became_of_each_pipeline(command: Command, road: Road, tmp_path: Path) -> None:
    app = tmp_path / "road_app.py"
    app.write_text(APP.replace("travel", "commuting"))

    new = await command("deploy", "road_app")
    unchanged = await command("deploy", "--app", "road_app.py:commuting")
    sys.modules.pop("road_app")
    app.write_text(APP.replace("travel", "commuting").replace('after="pack"', ""))
    changed = await command("deploy", "road_app")
    sys.modules.pop("road_app")

    assert (new.out, new.err) == ("", "commuting: version 1 (new)\n")
    assert (unchanged.out, unchanged.err) == ("", "commuting: version 1 (unchanged)\n")
    assert (changed.out, changed.err) == ("", "commuting: version 2 (changed)\n")
    stages = await road.ask("select stage, after from postroad.stage where pipeline = 'commuting' order by stage")
    assert stages == [("pack", []), ("ride", [])]


async def test_deploy_refuses_to_strand_tasks_unless_forced(command: Command, road: Road, tmp_path: Path) -> None:
    (tmp_path / "road_app.py").write_text(APP)
    task_id = await road.accept()
    await road.commit(task_id, "pack")

    refused = await command("deploy", "road_app", code=4)
    forced = await command("deploy", "road_app", "--force")
    sys.modules.pop("road_app")

    assert "'rest' (1 tasks, 0 dead letters)" in refused.err
    assert forced.err == (
        "travel: version 2 (changed)\ntravel: dropped what was at stage 'rest' (1 tasks, 0 dead letters)\n"
    )
    assert await road.task(task_id, "status") == ("in_progress",)


# audit


async def test_schedules_are_made_shown_and_ended(command: Command, road: Road) -> None:
    line = ["30 2 * * 1-5", "--timezone", "Europe/Berlin", "--payload", '{"what": "report"}', "--label", "team=blue"]
    made = await command("schedule", "add", "nightly", "travel", *line)
    again = await command("schedule", "add", "nightly", "travel", *line, code=4)
    (shown,) = (await command("schedule", "list", "--json")).data
    task_id = (await command("schedule", "run-now", "nightly")).out.strip()

    assert "nightly: first at 20" in made.err
    assert "a schedule 'nightly' already" in again.err
    assert (shown["cron"], shown["timezone"], shown["payload"]) == (line[0], "Europe/Berlin", {"what": "report"})
    assert (await command("task", "show", task_id, "--json")).data["labels"] == {"team": "blue"}
    assert "is paused" in (await command("schedule", "pause", "nightly")).err
    assert "already paused" in (await command("schedule", "pause", "nightly")).err
    assert "nightly: next at 20" in (await command("schedule", "resume", "nightly")).err
    assert "nightly" in (await command("schedule", "list")).out
    assert "is removed" in (await command("schedule", "remove", "nightly")).err
    assert "no schedule 'nightly'" in (await command("schedule", "remove", "nightly", code=3)).err


async def test_what_is_no_schedule_is_refused_with_what_is_wrong(command: Command, road: Road) -> None:
    for arguments, code, said in (
        (["x", "travel", "61 * * * *"], 2, "'61 * * * *' is no cron line: Bad minute"),
        (["x", "travel", "* * * * *", "--timezone", "Mars/Phobos"], 2, "no time zone 'Mars/Phobos'"),
        (["x", "travel", "* * * * *", "--payload", "{oops"], 2, "no JSON"),
        (["x", "travel", "* * * * *", "--payload", "[NaN]"], 2, "NaN is no JSON number"),
        (["x", "travel", "* * * * *", "--label", "team"], 2, "NAME=VALUE"),
        (["x", "travel", "* * * * *", "--label", "a b=c"], 2, "a label's name is"),
        (["a b", "travel", "* * * * *"], 2, "the name of a schedule is"),
        (["x", "nowhere", "* * * * *"], 3, "no pipeline 'nowhere'"),
    ):
        assert said in (await command("schedule", "add", *arguments, code=code)).err
    assert (await command("schedule", "list", "--json")).data == []


async def test_a_role_may_submit_once_it_was_granted(command: Command, road: Road) -> None:
    role = f"clerk {uuid4().hex[:8]}"
    assert f"no role '{role}'" in (await command("grant", "submit", role, code=3)).err
    await road.ask(f'create role "{role}"')
    may = "select has_function_privilege(:role, f.oid, 'execute') from pg_proc as f where proname = 'submit'"
    try:
        assert await road.ask(may, role=role) == [(False,)]
        assert f"{role} may call submit" in (await command("grant", "submit", role)).err
        assert await road.ask(may, role=role) == [(True,)]
    finally:
        await road.ask(f'drop owned by "{role}"')
        await road.ask(f'drop role "{role}"')


async def test_audit_ends_with_5_and_counts_what_does_not_hold(command: Command, road: Road) -> None:
    task_id = await road.accept()
    clean = await command("audit")
    await road.ask("update postroad.task set version = 7 where task_id = :id", id=task_id)

    table = await command("audit", code=5)
    document = await command("audit", "--json", code=5)

    assert {line.split()[0] for line in clean.out.splitlines()} == {"0"}
    assert [line.split(maxsplit=3) for line in table.out.splitlines() if not line.strip().startswith("0  ")] == [
        ["1", "3", "writes_differ_from_version", "a task's version counts its writes"],
        [str(task_id)],
    ]
    assert [one for one in document.data if one["violations"]] == [
        {
            "name": "writes_differ_from_version",
            "number": 3,
            "promise": "a task's version counts its writes",
            "violations": 1,
            "tasks": [str(task_id)],
        }
    ]
    assert clean.err == table.err == document.err == ""


# explain


async def test_explain_says_why_a_task_is_not_done(command: Command, road: Road) -> None:
    task_id = await die(road, "rest", reason="no inn")

    told = await command("explain", task_id)
    document = await command("explain", task_id, "--json")
    missing = await command("explain", uuid4(), code=3)

    first, second, third = told.out.splitlines()
    assert first.endswith("after 1 attempt: no inn")
    assert second.startswith("ride is in the outbox since ")
    assert third == "arrive waits for rest and ride"
    assert document.data["headline"] == first
    assert [reason["sentence"] for reason in document.data["reasons"]] == [first, second, third]
    assert "there is no task" in missing.err


# task


async def test_a_task_is_shown_to_people_and_to_programs(command: Command, road: Road) -> None:
    task_id = await road.accept(payload={"to": "R\u00f4me"})
    await road.commit(task_id, "pack")
    await road.commit(task_id, "ride", Reject("no road\nsince the flood"))

    page = (await command("task", "show", task_id)).out
    document = (await command("task", "show", task_id, "--json")).data

    for word in ("failed_at_stage:ride", "R\u00f4me", "StageDead:ride", "no road", "host:1:00000000"):
        assert word in page
    assert document["task_id"] == str(task_id)
    assert [run["status"] for run in document["stages"]] == ["done", "dead"]
    assert [event["event"] for event in document["events"]] == await road.events(task_id)
    assert document["events"][0]["occurred_at"].startswith("20")


async def test_a_task_that_there_is_not_ends_with_3(command: Command, road: Road) -> None:
    unknown = uuid4()

    finished = await command("task", "show", unknown, "--json", code=3)

    assert (finished.out, finished.err) == ("", f"postroad: there is no task {unknown}\n")


async def test_tasks_are_listed_the_newest_first(command: Command, road: Road) -> None:
    first, second, third = [await road.accept() for _ in range(3)]
    await road.complete(second)

    everything = (await command("task", "list", "--json")).data
    table = (await command("task", "list")).out.splitlines()

    assert [one["task_id"] for one in everything] == [str(third), str(second), str(first)]
    assert "payload" not in everything[0]
    assert table[0].split()[:3] == ["task_id", "pipeline", "status"]
    assert [line.split()[0] for line in table[1:]] == [str(third), str(second), str(first)]
    assert [one["task_id"] for one in (await command("task", "list", "--status", "completed", "--json")).data] == [
        str(second)
    ]
    assert len((await command("task", "list", "--limit", 2, "--json")).data) == 2
    assert (await command("task", "list", "--pipeline", "voyage", "--json")).data == []
    assert len((await command("task", "list", "--pipeline", "voyage")).out.splitlines()) == 1


async def test_a_list_goes_on_at_its_cursor_and_names_what_is_wrong(command: Command, road: Road) -> None:
    tasks = [str(await road.accept(key=f"order-{number}")) for number in range(3)]
    await road.ask('update postroad.task set labels = \'{"team": "blue="}\'')
    filters = ("--stage", "pack", "--label", "team=blue=", "--before", "2100-01-01T00:00:00Z", "--json")

    first = await command("task", "list", "--limit", 2, *filters)
    cursor = first.err.rpartition("--cursor ")[2].strip()
    second = await command("task", "list", "--cursor", cursor, *filters)

    assert [one["task_id"] for one in first.data + second.data] == tasks[::-1]
    assert second.err == ""
    assert [one["task_id"] for one in (await command("task", "list", "--q", "order-1", "--json")).data] == [tasks[1]]
    for wrong in (
        ("--cursor", cursor),
        ("--label", "team"),
        ("--after", "yesterday"),
    ):
        assert wrong[0] in (await command("task", "list", *wrong, code=2)).err


async def test_a_journey_is_followed_to_its_end(command: Command, road: Road) -> None:
    task_id = await road.accept()
    tailing = asyncio.create_task(command("task", "tail", task_id, "--jsonl"))
    await road.complete(task_id)

    finished = await tailing

    assert [json.loads(line)["type"] for line in finished.out.splitlines()] == await road.events(task_id)
    assert finished.err == f"{task_id} is completed\n"
    assert "StageCompleted:pack" in (await command("task", "tail", task_id)).out
    assert "no task" in (await command("task", "tail", uuid4(), code=3)).err


# dead


async def test_dead_letters_are_listed_with_what_they_have_in_common(command: Command, road: Road) -> None:
    one, two = await die(road, "ride", "rest"), await die(road, "ride", reason="no\nhorse")

    everything = (await command("dead", "list", "--json")).data
    table = (await command("dead", "list")).out.splitlines()

    assert [(letter["task_id"], letter["stage"]) for letter in everything] == [
        (str(one), "ride"),
        (str(one), "rest"),
        (str(two), "ride"),
    ]
    assert len(table) == 4
    assert table[3].split()[:4] == [str(everything[2]["dead_letter_id"]), str(two), "travel", "ride"]
    for option, value, expected in (
        ("--stage", "ride", 2),
        ("--pipeline", "travel", 3),
        ("--fingerprint", everything[0]["fingerprint"], 2),
        ("--limit", 1, 1),
        ("--pipeline", "voyage", 0),
    ):
        assert len((await command("dead", "list", option, value, "--json")).data) == expected


async def test_dead_letters_are_requeued_by_id_by_task_or_by_filter(command: Command, road: Road) -> None:
    one, two, three = await die(road, "ride", "rest"), await die(road, "ride"), await die(road, "rest")
    letter = (await command("dead", "list", "--json")).data[2]["dead_letter_id"]

    trial = await command("dead", "requeue", "--all", "--dry-run")
    by_id = await command("dead", "requeue", letter, "--by", "ada", "--reason", "the road is open")
    by_task = await command("dead", "requeue", one)
    by_filter = await command("dead", "requeue", "--stage", "rest")
    nothing = await command("dead", "requeue", "--all")

    assert "4 dead letters would be requeued" in trial.err
    assert [finished.err.split()[0] for finished in (by_id, by_task, by_filter, nothing)] == ["1", "2", "1", "0"]
    assert {finished.out for finished in (trial, by_id, by_task, by_filter, nothing)} == {""}
    assert await road.ask("select distinct status from postroad.task") == [("in_progress",)]
    told = await road.ask(
        "select data ->> 'by', data ->> 'reason' from postroad.outbox where type = 'StageRequeued' and task_id = :id",
        id=two,
    )
    assert told == [("ada", "the road is open")]
    assert (await road.events(three))[-1] == "StageRequested:rest"
    assert await road.violated() == {}


async def test_requeueing_what_is_not_dead_ends_with_3_and_changes_nothing(command: Command, road: Road) -> None:
    task_id = await die(road, "ride")
    (letter,) = (await command("dead", "list", "--json")).data
    stranger = uuid4()

    finished = await command("dead", "requeue", letter["dead_letter_id"], stranger, 10**30, code=3)

    assert str(stranger) in finished.err
    assert str(10**30) in finished.err
    assert await road.task(task_id, "status") == ("failed",)


async def test_whoever_has_no_name_on_this_machine_can_requeue(
    command: Command, road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise OSError("No username set in the environment")

    await die(road, "ride")
    monkeypatch.setattr("getpass.getuser", nobody)

    assert "1 " in (await command("dead", "requeue", "--all")).err
    ((by,),) = await road.ask("select resolved_by from postroad.dead_letter")
    assert by.startswith("uid ")


# submit


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, port: int = 0) -> AsyncIterator[str]:
    """The URL of an app."""
    async with open_port(app, port=port) as opened:
        yield f"http://127.0.0.1:{opened}"


@dataclass
class Moody:
    """An intake that carries out what it is asked and then, so many times, does not say so: it answers 503."""

    app: ASGIApp
    times: int
    requests: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        self.requests += 1
        if self.requests > self.times:
            return await self.app(scope, receive, send)

        async def forget(message: Any) -> None: ...

        await self.app(scope, receive, forget)
        await PlainTextResponse("lost", 503)(scope, receive, send)


def ndjson(documents: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


async def test_submitted_lines_are_counted_and_refused_ones_are_named(command: Command, road: Road) -> None:
    own = str(uuid4())
    lines = [
        b'{"payload": 1}',
        b"",
        b'{"payload": ',
        b"[]",
        b'{"payload": 2, "idempotency_key": "k"}',
        b'{"payload": 3, "idempotency_key": "k"}',
        b'{"payload": NaN}',
        b'{"payload": {"a": 1, "a": 2}}',
        b'{"payload": "\\ud800"}',
        b'{"payload": "\xff"}',
        b'{"load": 4}',
        b'{"payload": 5, "pipeline": "voyage"}',
        b'{"payload": 6, "pipeline": "travel"}',
        b'{"payload": 7, "labels": {"team": 7}}\r',
        b'{"payload": 8, "task_id": "%s"}' % own.encode(),
        b'{"payload": 8, "task_id": "%s"}' % own.encode(),
        b'{"payload": 9, "idempotency_key": null, "task_id": null}',
    ]
    async with serving(create_app(road.settings)) as url:
        finished = await command("submit", "travel", "--url", f"{url}/", stdin=b"\n".join(lines), code=1)

    assert finished.data == {"accepted": 6, "replayed": 1, "refused": 10}
    told = dict(line.removeprefix("line ").split(": ", 1) for line in finished.err.splitlines())
    assert {int(number): message for number, message in told.items()}.keys() == {3, 4, 6, 7, 8, 9, 10, 11, 12, 14}
    assert "no JSON" in told["3"]
    assert "an object with the member payload" in told["4"]
    assert "'k'" in told["6"]
    assert "two members named 'a' (at /payload)" in told["8"]
    assert "/payload: a payload is required" in told["11"]
    assert "for the pipeline 'voyage'" in told["12"]
    assert "/labels/team: " in told["14"]
    payloads = await road.ask("select payload from postroad.task order by payload")
    assert payloads == [(1,), (2,), (6,), (8,), (9,)]


async def test_a_priority_is_given_to_the_lines_that_have_none(command: Command, road: Road) -> None:
    await road.deploy(pipeline("urgent", priorities=True, pack=()))
    lines = ndjson([{"payload": 1}, {"payload": 2, "priority": "low"}, {"payload": 3, "priority": None}])
    async with serving(create_app(road.settings)) as url:
        await command("submit", "urgent", "--url", url, "--priority", "high", stdin=lines)
        refused = await command("submit", "travel", "--url", url, "--priority", "high", stdin=b'{"payload": 1}', code=1)

    assert await road.ask("select payload, priority from postroad.task order by payload") == [(1, 2), (2, 0), (3, 2)]
    assert "/priority: pipeline 'travel' has no priorities" in refused.err
    await command("submit", "urgent", "--url", url, "--priority", "urgent", stdin=lines, code=2)


async def test_an_unknown_pipeline_is_said_for_each_line(command: Command, road: Road) -> None:
    async with serving(create_app(road.settings)) as url:
        finished = await command("submit", "voyage", "--url", url, stdin=b'{"payload": 1}\n' * 30, code=1)

    assert finished.data == {"accepted": 0, "replayed": 0, "refused": 30}
    lines = finished.err.splitlines()
    assert "there is no pipeline 'voyage'" in lines[0]
    assert lines[20] == "… and 10 more"


async def test_lines_without_dates_are_given_those_of_the_options(command: Command, road: Road) -> None:
    early, late, later = (datetime.now(UTC) + timedelta(hours=hours) for hours in (1, 2, 3))
    lines = ndjson([{"payload": 1}, {"payload": 2, "deadline": later.isoformat()}])
    dates = ["--not-before", early.isoformat(), "--deadline", late.isoformat()]

    async with serving(create_app(road.settings)) as url:
        assert (await command("submit", "travel", "--url", url, *dates, stdin=lines)).data["accepted"] == 2
        past = await command(
            "submit", "travel", "--url", url, "--deadline", "2020-01-01T00:00:00Z", stdin=lines, code=1
        )

    assert "line 1: /deadline: a moment that is still ahead" in past.err
    assert "not of the form 2026" in (await command("submit", "travel", "--deadline", "tomorrow", code=2)).err
    rows = await road.ask("select not_before, deadline from postroad.task order by payload limit 2")
    assert rows == [(early, late), (early, later)]


async def test_a_file_that_is_submitted_again_is_new_work_unless_its_lines_say_who_they_are(
    command: Command, road: Road, tmp_path: Path
) -> None:
    file = tmp_path / "tasks.ndjson"
    ids = [{"payload": 1, "task_id": str(uuid4())} for _ in range(3)]
    file.write_bytes(ndjson([{"payload": 0}, {"payload": 1, "idempotency_key": "k"}, *ids]))

    async with serving(create_app(road.settings)) as url:
        first = await command("submit", "travel", file, "--url", url)
        again = await command("submit", "travel", file, "--url", url)

    assert first.data == {"accepted": 5, "replayed": 0, "refused": 0}
    assert again.data == {"accepted": 5, "replayed": 4, "refused": 0}
    assert (first.err, again.err) == ("", "")
    assert await road.count("task") == {"task": 6}


async def test_a_request_whose_answer_is_lost_is_repeated_and_doubles_nothing(command: Command, road: Road) -> None:
    moody = Moody(create_app(road.settings), times=5)
    lines = ndjson({"payload": number} | ({"idempotency_key": None} if number % 3 else {}) for number in range(1000))

    async with serving(moody) as url:
        finished = await command("submit", "travel", "--url", url, stdin=lines)

    assert finished.data["accepted"] == 1000
    assert finished.data["replayed"] >= 200
    assert "waiting for the intake" in finished.err
    assert moody.requests > 5
    assert await road.ask("select count(*), count(distinct payload) from postroad.task") == [(1000, 1000)]


async def test_an_intake_that_comes_back_is_gone_on_with(command: Command, road: Road) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    lines = ndjson({"payload": number} for number in range(3000))

    submitting = asyncio.create_task(command("submit", "travel", "--url", f"http://127.0.0.1:{port}", stdin=lines))
    await asyncio.sleep(0.3)
    assert not submitting.done()
    async with serving(create_app(road.settings), port):
        while await road.count("task") == {"task": 0}:  # noqa: ASYNC110 - Postgres tells nobody
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.2)
    async with serving(create_app(road.settings), port):
        finished = await submitting

    assert finished.data["accepted"] == 3000
    assert f"waiting for the intake at http://127.0.0.1:{port}: " in finished.err
    assert await road.ask("select count(*), count(distinct payload) from postroad.task") == [(3000, 3000)]


async def test_a_run_that_ended_early_can_be_gone_on_with(command: Command, road: Road, tmp_path: Path) -> None:
    file = tmp_path / "tasks.ndjson"
    file.write_bytes(ndjson({"payload": number} for number in range(900)))

    async with serving(Moody(create_app(road.settings), times=1000)) as url:
        ended = await command("submit", "travel", file, "--url", url, "--patience", 0.2, code=69)
    before = (await road.count("task"))["task"]
    run = ended.err.partition("--run ")[2].split()[0]
    async with serving(create_app(road.settings)) as url:
        finished = await command("submit", "travel", file, "--url", url, "--run", run)

    assert ended.data["accepted"] == 0
    assert "the intake at http://127.0.0.1:" in ended.err
    assert before > 0
    assert finished.data == {"accepted": 900, "replayed": before, "refused": 0}
    assert await road.ask("select count(*), count(distinct payload) from postroad.task") == [(900, 900)]


async def test_large_lines_are_sent_in_requests_that_the_intake_takes(
    command: Command, settings: Settings, road: Road
) -> None:
    small = replace(settings, body_limit=50_000, batch_limit=200_000)
    sizes = [40_000] * 30 + [60_000, 300_000]
    lines = ndjson({"payload": f"{number:05}".ljust(size, "x")} for number, size in enumerate(sizes))

    async with serving(create_app(small)) as url:
        finished = await command("submit", "travel", "--url", url, stdin=lines, code=1)

    assert finished.data == {"accepted": 30, "replayed": 0, "refused": 2}
    assert finished.err.splitlines() == [
        "line 31: the line has more than 50,000 bytes",
        "line 32: too large for the intake",
    ]


async def test_another_server_than_an_intake_is_named(command: Command) -> None:
    async with serving(PlainTextResponse("nothing here", 404)) as url:
        finished = await command("submit", "travel", "--url", url, stdin=b'{"payload": 1}', code=1)

    assert f"{url} answers 404 nothing here" in finished.err


async def test_nothing_to_submit_is_no_error(command: Command) -> None:
    finished = await command("submit", "travel", "--url", "http://127.0.0.1:1", stdin=b"\n\n")

    assert finished.data == {"accepted": 0, "replayed": 0, "refused": 0}


# submit --wait


@dataclass
class Patient:
    """An intake that says when somebody has come to wait, and answers them 503 from when it ``is_away`` on."""

    app: ASGIApp
    has_come: asyncio.Event = field(default_factory=asyncio.Event)
    is_away: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "GET":
            self.has_come.set()
            if self.is_away:
                return await PlainTextResponse("away", 503)(scope, receive, send)
        await self.app(scope, receive, send)


async def ids(road: Road) -> list[UUID]:
    """Those of all tasks, in the order of their payloads, which are numbers."""
    return [task_id for (task_id,) in await road.ask("select task_id from postroad.task order by payload")]


async def test_waiting_for_a_task_prints_what_it_came_to(command: Command, road: Road) -> None:
    patient = Patient(create_app(road.settings))
    async with serving(patient) as url:
        waiting = asyncio.create_task(command("submit", "travel", "--url", url, "--wait", stdin=b'{"payload": 1}'))
        await patient.has_come.wait()
        (task_id,) = await ids(road)
        assert not waiting.done()
        await road.complete(task_id)
        finished = await waiting

    done = {"by": "test"}
    assert finished.err == ""
    assert finished.data == {
        "accepted": 1,
        "replayed": 0,
        "refused": 0,
        "completed": 1,
        "failed": 0,
        "cancelled": 0,
        "open": 0,
        "task": {
            "task_id": str(task_id),
            "status": "completed",
            "stage_status": "arrive_done",
            "results": {"pack": done, "ride": done, "rest": done, "arrive": done},
            "errors": {},
        },
    }


async def test_waiting_for_tasks_that_end_otherwise_names_them_and_ends_with_5(command: Command, road: Road) -> None:
    patient = Patient(create_app(road.settings))
    async with serving(patient) as url:
        lines = ndjson({"payload": number} for number in range(3))
        waiting = asyncio.create_task(
            command("submit", "travel", "--url", url, "--wait=20s", stdin=b"\n" + lines, code=5)
        )
        await patient.has_come.wait()
        completed, failed, cancelled = await ids(road)
        await road.complete(completed)
        await road.commit(failed, "pack", Reject("no road"))
        async with road.engine.begin() as connection:
            await cancel(connection, [cancelled], road.settings.schema, by="test")
        finished = await waiting

    counts = {"completed": 1, "failed": 1, "cancelled": 1, "open": 0}
    assert finished.data == {"accepted": 3, "replayed": 0, "refused": 0} | counts
    assert finished.err.splitlines() == [
        f"line 3: task {failed} is failed; pack: no road",
        f"line 4: task {cancelled} is cancelled",
    ]


async def test_a_line_that_was_refused_counts_for_more_than_how_the_others_ended(command: Command, road: Road) -> None:
    async with serving(create_app(road.settings)) as url:
        lines = b'{"payload": 1}\n{"load": 1}'
        finished = await command("submit", "travel", "--url", url, "--wait", "0", stdin=lines, code=1)

    assert (finished.data["accepted"], finished.data["refused"], finished.data["open"]) == (1, 1, 1)
    assert finished.err.startswith("line 2: ")


async def test_when_the_time_to_wait_is_over_it_ends_with_75_and_says_how_to_look(command: Command, road: Road) -> None:
    async with serving(create_app(road.settings)) as url:
        finished = await command("submit", "travel", "--url", url, "--wait", "0.2", stdin=b'{"payload": 1}', code=75)

    (task_id,) = await ids(road)
    assert finished.data["open"] == 1
    assert finished.data["task"] == {"task_id": str(task_id)}
    assert f"task {task_id} was accepted, has not ended, and goes on: postroad task show {task_id}, or" in finished.err
    assert f"{url}/v1/tasks/{task_id}" in finished.err
    assert await road.task(task_id, "status") == ("pending",)


async def test_what_has_not_ended_in_time_can_be_waited_for_again(command: Command, road: Road, tmp_path: Path) -> None:
    file = tmp_path / "tasks.ndjson"
    file.write_bytes(ndjson({"payload": number} for number in range(AT_ONCE + 1)))
    patient = Patient(create_app(road.settings))

    async with serving(patient) as url:
        waiting = asyncio.create_task(command("submit", "travel", file, "--url", url, "--wait", "2", code=75))
        await patient.has_come.wait()
        # One for which there is a place only when the time is over.
        *others, last = await ids(road)
        await road.complete(last)
        ended = await waiting
        run = ended.err.partition("--run ")[2].split()[0]
        for task_id in others:
            await road.complete(task_id)
        finished = await command("submit", "travel", file, "--url", url, "--wait", "--run", run)

    assert (ended.data["completed"], ended.data["open"]) == (1, AT_ONCE)
    assert f"{AT_ONCE} of {AT_ONCE + 1} tasks have not ended, and go on: --run" in ended.err
    assert finished.data["replayed"] == finished.data["completed"] == AT_ONCE + 1
    assert finished.err == ""


async def test_an_intake_that_goes_away_while_tasks_are_waited_for_ends_with_69(command: Command, road: Road) -> None:
    patient = Patient(create_app(road.settings), is_away=True)
    async with serving(patient) as url:
        arguments = ["submit", "travel", "--url", url, "--patience", "0.2"]
        forever = await command(*arguments, "--wait", stdin=b'{"payload": 1}', code=69)
        # Here the time is over before patience is.
        in_time = await command(*arguments, "--wait", "0.1", stdin=b'{"payload": 2}', code=75)

    for finished, task_id in zip((forever, in_time), await ids(road), strict=True):
        assert finished.data["open"] == 1
        assert f"task {task_id} was accepted, has not ended, and goes on" in finished.err
    assert "does not answer: 503 away" in forever.err.splitlines()[-1]


async def test_a_key_that_may_not_read_submits_and_cannot_wait(
    command: Command, road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROAD_API_KEY", (await command("key", "create", "shop", "--scope", "submit")).out.strip())
    async with serving(create_app(road.settings)) as url:
        finished = await command("submit", "travel", "--url", url, "--wait", stdin=b'{"payload": 1}', code=1)

    (task_id,) = await ids(road)
    assert finished.data["task"] == {"task_id": str(task_id)}
    assert f"task {task_id} was accepted" in finished.err
    assert "answers 403: set POSTROAD_API_KEY to a key that has the scope read, to wait" in finished.err


async def test_an_interrupt_while_a_task_is_waited_for_ends_with_130_and_names_it(
    settings: Settings, road: Road
) -> None:
    patient = Patient(create_app(settings))
    async with serving(patient) as url:
        with started(settings, "submit", "travel", "--url", url, "--wait") as process:
            assert process.stdin
            process.stdin.write('{"payload": 1}')
            process.stdin.close()
            await patient.has_come.wait()
            process.send_signal(signal.SIGINT)
            code = await asyncio.to_thread(process.wait, 20)
            assert process.stdout
            assert process.stderr
            out, err = process.stdout.read(), process.stderr.read()

    (task_id,) = await ids(road)
    assert code == 130
    assert json.loads(out)["task"] == {"task_id": str(task_id)}
    assert err.startswith(f"task {task_id} was accepted, has not ended, and goes on: postroad task show {task_id}")
    assert "Traceback" not in err


# Processes


@contextlib.contextmanager
def started(settings: Settings, *arguments: str, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process of the command, which has ended when the block ends."""
    program = [sys.executable, "-m", "postroad.cli", *arguments]
    environment = settings.environment() | {"PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        program, env=environment, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], word: str) -> str:
    """What it has written to stderr, up to the line that holds ``word``."""
    assert process.stderr
    read = ""
    while word not in read:
        line = process.stderr.readline()
        assert line, read
        read += line
    return read


def feed(process: subprocess.Popen[str]) -> None:
    """More lines than fit into one request, and stdin stays open."""
    assert process.stdin
    process.stdin.write('{"payload": 1}\n' * 250)
    process.stdin.flush()


def test_submitting_ends_at_once_when_it_is_interrupted_though_more_lines_may_come(settings: Settings) -> None:
    with started(settings, "submit", "travel", "--url", "http://127.0.0.1:1") as process:
        feed(process)
        read_until(process, "waiting for the intake")
        process.send_signal(signal.SIGINT)
        code = process.wait(20)
        err = read_until(process, "--run")

    assert code == 130
    assert "Traceback" not in err


def test_an_unreachable_intake_ends_submitting_though_more_lines_may_come(settings: Settings) -> None:
    with started(settings, "submit", "travel", "--url", "http://127.0.0.1:1", "--patience", "0.1") as process:
        feed(process)
        code = process.wait(20)
        err = read_until(process, "postroad: the intake at http://127.0.0.1:1 does not answer: ")

    assert code == 69
    assert "Traceback" not in err


def test_serving_on_a_port_that_is_taken_ends_with_1(settings: Settings, road: Road) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with started(settings, "serve", "--port", str(port)) as process:
            _, err = process.communicate(timeout=30)

    assert process.returncode == 1
    assert "address already in use" in err
    assert "Traceback" not in err


async def test_serving_ends_at_once_though_a_journey_is_followed_and_an_end_waited_for(
    settings: Settings, road: Road
) -> None:
    path = f"/v1/tasks/{await road.accept()}"
    with started(settings, "serve", "--port", "0") as process:
        said = await asyncio.to_thread(read_until, process, "accepting tasks on ")
        url = said.rpartition("accepting tasks on ")[2].partition('"')[0].strip()
        async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
            await client.get("/livez")  # so that the next request goes out at once, on this connection
            waiting = asyncio.create_task(client.get(f"{path}?wait=30"))
            async with client.stream("GET", f"{path}/events", headers={"Accept": "text/event-stream"}) as answer:
                told = answer.aiter_lines()
                while not (await anext(told)).startswith("event: "):
                    pass
                process.terminate()
                rest = [line async for line in told]
            answered = await waiting
        code = await asyncio.to_thread(process.wait, 10)

    assert code == 0
    assert not any(line.startswith("event: ") for line in rest)
    assert answered.json()["status"] == "pending"


def test_running_a_stage_that_is_not_in_force_ends_with_4(settings: Settings, road: Road, tmp_path: Path) -> None:
    (tmp_path / "road_app.py").write_text(APP.replace("async def ride", "async def fly"))

    with started(replace(settings, app="road_app"), "stage", "fly", cwd=tmp_path) as process:
        _, err = process.communicate(timeout=30)

    assert process.returncode == 4
    assert "has no stage 'fly': run postroad deploy" in err


TWO_ROADS = (
    APP
    + """
back = Pipeline("return")
back.stage("relay")(pack)
back.stage("pack", after="relay")(pack)
"""
)


def test_up_runs_and_ends_stages_of_one_name_in_two_pipelines(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "road_app.py").write_text(TWO_ROADS)

    with started(replace(settings, port=0), "up", "road_app", cwd=tmp_path) as process:
        err = read_until(process, "Ctrl-C stops it all.")
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)

    assert process.returncode == 0
    assert "travel.pack, travel.ride, return.relay, return.pack" in err
    assert len(family) >= 6
    assert not any(one.is_running() for one in family)


def test_up_can_be_stopped_while_it_starts(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "road_app.py").write_text(APP)
    code = "import os, sys, time; print('before', os.getpid(), file=sys.stderr, flush=True); time.sleep(600)"

    with started(
        replace(settings, port=0), "up", "road_app", "--before", f'python -c "{code}"', cwd=tmp_path
    ) as process:
        before = int(read_until(process, "before").split()[-1])
        process.send_signal(signal.SIGTERM)
        process.wait(20)

    assert process.returncode == 0
    assert not psutil.pid_exists(before)


async def test_a_command_before_that_fails_is_told(
    settings: Settings, command: Command, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    (tmp_path / "road_app.py").write_text(APP)
    settings = replace(settings, app="road_app")

    for before, message in (
        ("no-such-program", "No such file"),
        ("it's", "No closing quotation"),
        (" ", "cannot be run"),
        ("false", "ended with code 1"),
    ):
        with subtests.test(before=before), pytest.raises(StackError, match=message):
            async with stack(settings, folder=tmp_path, log=Log(), before=before):
                pass


# Acting on tasks and stages


async def test_dead_letters_are_discarded_and_their_groups_shown(command: Command, road: Road) -> None:
    task = await die(road, "ride")

    groups = (await command("dead", "groups", "--json")).data
    await command("dead", "discard", task, "--by", "ann", "--reason", "too late")

    assert [(group["letters"], group["stage"]) for group in groups] == [(1, "ride")]
    assert (await command("dead", "list", "--json")).data == []
    assert await road.task(task, "status") == ("failed",)
    assert (await road.events(task))[-1] == "DeadLetterDiscarded:ride"


async def test_requeueing_at_a_rate_requeues_all_and_a_bad_rate_is_refused(command: Command, road: Road) -> None:
    for _ in range(3):
        await die(road, "ride")

    for rate in ("0/s", "-1", "nonsense", "nan", "1e9/s"):
        assert "no rate" in (await command("dead", "requeue", "--all", "--rate", rate, code=2)).err
    finished = await command("dead", "requeue", "--all", "--rate", "100/s")

    assert "3 dead letters requeued" in finished.err
    assert (await command("dead", "list", "--json")).data == []


async def test_a_task_is_cancelled_once(command: Command, road: Road) -> None:
    task = await road.accept()

    await command("task", "cancel", task, "--by", "ann")
    again = await command("task", "cancel", task, code=4)
    unknown = await command("task", "cancel", uuid4(), code=3)

    assert await road.task(task, "status") == ("cancelled",)
    assert "already" in again.err
    assert "no task" in unknown.err


async def test_a_task_is_run_again_from_a_stage(command: Command, road: Road) -> None:
    task = await road.accept()
    await road.complete(task)

    finished = await command("task", "retry", task, "--from", "ride")

    assert "arrive, ride" in finished.err
    assert await road.task(task, "status") == ("in_progress",)
    assert "no stage" in (await command("task", "retry", task, "--from", "nowhere", code=3)).err
    assert "name the stage" in (await command("task", "retry", task, code=4)).err


async def test_the_dead_stages_of_a_task_are_run_again(command: Command, road: Road) -> None:
    task, other = await die(road, "ride"), await die(road, "ride")

    assert "ride" in (await command("task", "retry", task)).err
    assert await road.task(task, "status") == ("in_progress",)
    assert await road.task(other, "status") == ("failed",)
    await command("task", "retry", uuid4(), code=3)


async def test_a_stage_is_paused_and_resumed(command: Command, road: Road) -> None:
    async def is_paused() -> bool:
        return bool((await road.ask("select paused from postroad.stage where stage = 'ride'"))[0][0])

    await command("pause", "travel.ride")
    assert await is_paused()
    assert "already" in (await command("pause", "travel.ride")).err
    await command("resume", "travel.ride")
    assert not await is_paused()
    assert "no stage" in (await command("pause", "travel.nowhere", code=3)).err
    assert "PIPELINE.STAGE" in (await command("pause", "ride", code=2)).err


async def test_limits_of_a_stage_are_set_shown_and_cleared(command: Command, road: Road) -> None:
    async def limits() -> tuple[Any, ...]:
        (row,) = [row for row in (await command("stage", "list", "--json")).data if row["stage"] == "ride"]
        return tuple(row[name] for name in ("rate", "burst", "max_running", "limits_set"))

    assert await limits() == (None, None, None, False)
    told = await command("stage", "set", "travel.ride", "--rate", "50/s", "--burst", 9, "--max-running", 4)
    assert told.err == "limits of travel.ride: rate 50/s, burst 9, max_running 4\n"
    assert await limits() == ("50/s", 9, 4, True)
    await command("stage", "set", "travel.ride", "--rate", "30/m")
    assert await limits() == ("30/m", None, 4, True)
    await command("stage", "set", "travel.ride", "--rate", "off")
    assert await limits() == (None, None, 4, True)
    assert "those of its code" in (await command("stage", "set", "travel.ride", "--clear")).err
    assert await limits() == (None, None, None, False)
    assert [row["stage"] for row in (await command("stage", "list", "--json")).data] == [*TRAVEL.graph()]
    assert (await command("stage", "list", "--pipeline", "voyage", "--json")).data == []


async def test_limits_in_the_code_are_shown_once_deployed(command: Command, tmp_path: Path) -> None:
    app = APP.replace("travel", "commuting").replace('after="pack"', 'after="pack", rate="90/m", max_running=3')
    (tmp_path / "limited_app.py").write_text(app)

    await command("deploy", "limited_app")
    sys.modules.pop("limited_app")

    pack, ride = (await command("stage", "list", "--pipeline", "commuting", "--json")).data
    assert (pack["rate"], pack["max_running"]) == (None, None)
    assert (ride["rate"], ride["burst"], ride["max_running"], ride["limits_set"]) == ("90/m", 1, 3, False)


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["travel.ride"], 2, "--clear"),
        (["travel.ride", "--clear", "--rate", "5/s"], 2, "--clear"),
        (["ride", "--rate", "5/s"], 2, "PIPELINE.STAGE"),
        (["travel.nowhere", "--rate", "5/s"], 3, "no stage travel.nowhere"),
        (["travel.ride", "--rate", "0/s"], 2, "pause a stage"),
        (["travel.ride", "--rate", "-1"], 2, "200/s"),
        (["travel.ride", "--rate", "1e9/s"], 2, "200/s"),
        (["travel.ride", "--burst", "0"], 2, "--burst"),
        (["travel.ride", "--max-running", "many"], 2, "--max-running"),
    ],
)
async def test_limits_that_cannot_be_are_refused(
    command: Command, road: Road, arguments: list[str], code: int, word: str
) -> None:
    assert word in (await command("stage", "set", *arguments, code=code)).err
    assert await road.ask("select from postroad.stage where num_nonnulls(rate, burst, max_running) > 0") == []


async def test_pruning_says_what_it_drops_and_needs_a_marker_for_events(command: Command, road: Road) -> None:
    await road.complete(await road.accept())

    finished = await command("prune", "--dry-run")

    assert "no marker yet" in finished.err
    assert "0 tasks would be deleted" in finished.err
    assert "retention" in (await command("prune", "--retention", "31d", code=78)).err


# key


async def test_a_key_is_shown_once_listed_without_its_secret_and_revoked(command: Command, road: Road) -> None:
    made = await command(
        "key", "create", "shop", "--scope", "submit", "--scope", "read", "--pipeline", "travel",
        "--pipeline", "nowhere", "--rate", "100/s", "--expires", "90d", "--by", "ada",
    )  # fmt: skip
    key = made.out.strip()
    _, key_id, secret = key.split("_")
    listed = (await command("key", "list")).out
    (row,) = (await command("key", "list", "--json")).data
    revoked = await command("key", "revoke", key_id)
    again = await command("key", "revoke", key)

    assert made.out == f"{key}\n"
    assert made.err.startswith(f"shop: key {key_id} for submit, read, until ")
    assert "there is no pipeline 'nowhere' yet" in made.err
    assert secret not in made.err + listed + json.dumps(row) + revoked.err + again.err
    assert {name: row[name] for name in ("key_id", "name", "state", "scopes", "rate", "created_by")} == {
        "key_id": key_id,
        "name": "shop",
        "state": "active",
        "scopes": ["submit", "read"],
        "rate": "100/s",
        "created_by": "ada",
    }
    left = datetime.fromisoformat(row["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=89) < left <= timedelta(days=90)
    assert (revoked.err, again.err) == (f"{key_id} is revoked\n", f"{key_id} is already revoked\n")
    assert (await command("key", "list", "--json")).data[0]["state"] == "revoked"
    assert f"there is no key '{'0' * 12}'" in (await command("key", "revoke", "0" * 12, code=3)).err


async def test_a_key_as_json_is_one_document(command: Command, road: Road) -> None:
    made = (await command("key", "create", "ops", "--scope", "operate", "--json")).data

    assert made["key"].startswith(f"prk_{made['key_id']}_")
    assert made["scopes"] == ["operate"]
    assert made["pipelines"] is None
    assert "digest" not in made


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["shop"], "--scope"),
        (["shop", "--scope", "everything"], "'everything' is not one of 'submit', 'read', 'operate'"),
        (["the shop", "--scope", "read"], "the name of a key is 1 to 63 letters"),
        (["shop", "--scope", "read", "--rate", "fast"], "'fast' is no rate such as 200/s"),
        (["shop", "--scope", "read", "--burst", "3"], "a burst belongs to a rate"),
        (["shop", "--scope", "read", "--rate", "1/s", "--burst", "0"], "burst must be a whole number from 1"),
        (["shop", "--scope", "read", "--expires", "soon"], "not a duration such as"),
        (["shop", "--scope", "read", "--expires", "0s"], "and not at once"),
        (["shop", "--scope", "read", "--pipeline", ""], "the name of a pipeline is not empty"),
    ],
)
async def test_a_key_that_will_not_do_is_not_made(
    command: Command, road: Road, arguments: list[str], reason: str
) -> None:
    assert reason in (await command("key", "create", *arguments, code=2)).err
    assert (await command("key", "list", "--json")).data == []


# serve, and who may come in


def test_without_keys_serve_listens_to_this_machine_only(settings: Settings, road: Road) -> None:
    for host in ("0.0.0.0", "::"):
        with started(settings, "serve", "--port", "0", "--host", host) as process:
            _, err = process.communicate(timeout=30)

        assert process.returncode == 78
        assert f"host: {host} can be reached from other machines, and there are no keys" in err
        assert "postroad key create NAME --scope submit" in err
        assert "Traceback" not in err
    for auth, said in (("auto", "there are no keys: whoever reaches"), ("required", "and there is none: make one")):
        with started(settings, "serve", "--port", "0", "--host", "localhost", "--auth", auth) as process:
            assert said in read_until(process, "accepting tasks on")


async def test_with_a_key_or_without_auth_it_listens_to_everybody(
    command: Command, settings: Settings, road: Road
) -> None:
    with started(settings, "serve", "--port", "0", "--host", "0.0.0.0", "--auth", "off") as process:
        assert "auth is off" in read_until(process, "accepting tasks on")
    await command("key", "create", "shop", "--scope", "submit")
    with started(settings, "serve", "--port", "0", "--host", "0.0.0.0") as process:
        assert "every request needs a key" in read_until(process, "accepting tasks on")


async def test_submitting_brings_the_key_and_keeps_to_its_rate(
    command: Command, settings: Settings, road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = (await command("key", "create", "shop", "--scope", "submit", "--rate", "20/s")).out.strip()
    lines = b'{"payload": 1}\n' * 30
    async with open_port(create_app(settings)) as port:
        arguments = ["submit", "travel", "--url", f"http://127.0.0.1:{port}"]
        refused = await command(*arguments, stdin=lines, code=1)
        monkeypatch.setenv("POSTROAD_API_KEY", key)
        accepted = await command(*arguments, stdin=lines)

    assert "answers 401: set POSTROAD_API_KEY to a key that is good" in refused.err
    assert accepted.data == {"accepted": 30, "replayed": 0, "refused": 0}
    assert await road.ask("select submitted_by, count(*) from postroad.task group by 1") == [("key:shop", 30)]
