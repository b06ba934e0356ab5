"""What the command says, and exits with, when it cannot do what it was asked."""

import json
import uuid
from pathlib import Path

import pytest

from postroad.core.settings import Settings
from tests.acceptance.deployment import Deployment

CLOSED = "postgresql://rider:secret@127.0.0.1:1/nowhere"
CLOSED_DOOR = "http://127.0.0.1:1"
APP = "tests.acceptance.app"
AWAY = "Postgres at postgresql://rider:***@127.0.0.1:1/nowhere does not answer"


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "message"),
    [
        (["gallop"], {}, 2, "No such command 'gallop'"),
        (["stage"], {"POSTROAD_APP": APP}, 2, "name the stages to run, or say --all"),
        (["dead", "requeue"], {}, 2, "name dead letters by id"),
        (["task", "show", "seven"], {}, 2, "'seven' is not a valid UUID"),
        (["stage", "--all"], {"DATABASE_URL": CLOSED}, 78, "--app (or POSTROAD_APP) is required"),
        (["stage", "--all", "--app", "nowhere"], {}, 78, "there is no module 'nowhere'"),
        (["stage", "road.tunnel", "--app", APP], {}, 78, "there is no stage 'road.tunnel'; there are road.survey, "),
        (["stage", "cross", "--app", APP], {}, 78, "'cross' is ambiguous: hazard.cross, hazard-in-"),
        (["stage", "--all", "--app", APP], {}, 78, "DATABASE_URL is not set"),
        (["audit"], {"POSTROAD_LAESE": "3s"}, 78, "POSTROAD_LAESE is no setting of postroad; did you mean"),
        (["relay"], {"DATABASE_URL": CLOSED}, 78, "REDIS_URL is not set"),
        (["audit"], {"DATABASE_URL": CLOSED}, 69, AWAY),
        (["migrate"], {"DATABASE_URL": CLOSED}, 69, AWAY),
        (["up", APP], {"DATABASE_URL": CLOSED, "REDIS_URL": "redis://127.0.0.1:1"}, 69, AWAY),
        (["submit", "road", "--url", CLOSED_DOOR, "--patience", "0"], {}, 69, f"the intake at {CLOSED_DOOR} does not"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)  # fmt: skip
def test_a_command_that_cannot_run_says_why_in_its_last_line(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], code: int, message: str
) -> None:
    nothing = Deployment(Settings(), tmp_path)
    inherited = {name: value for name, value in nothing.environment().items() if not name.startswith("POSTROAD_")}

    ended = nothing.run(*arguments, input='{"payload": 1}\n', environment=inherited | environment)

    assert ended.code == code
    assert message in ended.err.splitlines()[-1]
    assert "secret" not in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("command", ["serve", "relay", "stage"])
def test_a_database_without_our_tables_is_an_error_that_says_what_to_do(deployment: Deployment, command: str) -> None:
    arguments = [command, "--schema", "elsewhere", *(["--all"] if command == "stage" else [])]

    ended = deployment.run(*arguments)

    assert ended.code == 78
    assert ended.err.splitlines()[-1].endswith("run postroad migrate")
    assert "'elsewhere' has no tables of postroad" in ended.err
    assert "Traceback" not in ended.err


def test_what_is_not_there_is_3_and_what_does_not_fit_is_4(deployment: Deployment) -> None:
    unknown = str(uuid.uuid4())

    for arguments in (["task", "show", unknown], ["dead", "requeue", unknown], ["dead", "requeue", "7"]):
        ended = deployment.run(*arguments)
        assert ended.code == 3
        assert ended.err.startswith("postroad: ")
        assert len(ended.err.splitlines()) == 1

    assert deployment.run("deploy").code == 0
    deployment.execute("update postroad.pipeline set definition = '{\"stages\": []}' where pipeline = 'road'")
    refused = deployment.run("stage", "road.survey")
    assert refused.code == 4
    assert "has no stage 'survey': run postroad deploy" in refused.err
    assert "Traceback" not in refused.err


def test_audit_names_the_violated_invariant_and_exits_with_5(deployment: Deployment) -> None:
    deployment.run("deploy")
    deployment.serve()
    deployment.submit("road", {"length": 1}, {"length": 2})
    assert deployment.run("audit").code == 0
    deployment.execute("update postroad.task set stages_done = '{survey}' where payload = '{\"length\": 2}'")

    audited = deployment.run("audit", "--json")
    printed = deployment.run("audit")

    assert (audited.code, printed.code) == (5, 5)
    violated = {one["name"] for one in json.loads(audited.out) if one["violations"]}
    assert violated == {"stages_done_differ", "ready_without_event"}  # nobody asked for the stage after it
    assert "        1  2  stages_done_differ            a task lists exactly the stages that are done\n" in printed.out


def test_submit_names_the_lines_that_were_refused_and_exits_with_1(deployment: Deployment) -> None:
    deployment.run("deploy")
    deployment.serve()
    lines = ['{"payload": {"length": 1}}', "no JSON", "", '{"load": 1}', '{"payload": NaN}', '{"payload": 2}']

    ended = deployment.run("submit", "road", "--url", deployment.url, input="\n".join(lines))
    unknown = deployment.run("submit", "rail", "--url", deployment.url, input=lines[0])

    assert ended.code == 1
    assert json.loads(ended.out) == {"accepted": 2, "replayed": 0, "refused": 3}
    assert [line.partition(":")[0] for line in ended.err.splitlines()] == ["line 2", "line 4", "line 5"]
    assert unknown.code == 1
    assert "there is no pipeline 'rail'" in unknown.err
    deployment.audit()
