"""The command as a whole: its help, and how it ends."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from postroad.cli.main import main

ROOT = Path(__file__).parents[2]

COMMANDS = ("up", "demo", "migrate", "deploy", "serve", "relay", "stage", "submit", "task", "dead", "audit", "version")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs the command in an empty folder and environment; returns its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("POSTROAD_") or name in ("DATABASE_URL", "REDIS_URL"):
            monkeypatch.delenv(name)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["postroad", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return run


def test_help_does_not_wait_for_drivers() -> None:
    program = (
        "import json, sys\n"
        "sys.argv = ['postroad', '--help']\n"
        "from postroad.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: print(json.dumps([end.code, sorted(sys.modules)]), file=sys.stderr)\n"
    )

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=30)

    code, modules = json.loads(done.stderr)
    assert code == 0
    assert "Commands:" in done.stdout
    heavy = {"sqlalchemy", "psycopg", "redis", "alembic", "aiohttp", "uvicorn", "starlette", "opentelemetry", "rich"}
    assert heavy.isdisjoint(modules)


def test_help_names_every_command(run: Run) -> None:
    code, out, err = run("--help")

    assert (code, err) == (0, "")
    listed = {line.split()[0] for line in out.partition("Commands:")[2].splitlines() if line}
    assert listed >= set(COMMANDS)


def test_every_command_explains_itself(run: Run) -> None:
    for name in COMMANDS:
        code, out, err = run(name, "-h")

        assert (code, err) == (0, "")
        assert out.startswith(f"Usage: postroad {name} ")


def test_the_version_is_data(run: Run) -> None:
    code, out, err = run("version")

    assert (code, err) == (0, "")
    assert out.startswith("postroad ")


NOBODY = "postgresql://postgres:secret@127.0.0.1:1/postgres"
ID = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["migrate", "--no-such-option"],
        ["stage"],
        ["stage", "travel.pack", "--all"],
        ["task", "show", "7"],
        ["task", "list", "--status", "lost"],
        ["task", "list", "--limit", "0"],
        ["dead", "requeue"],
        ["dead", "requeue", "7", "--all"],
        ["dead", "requeue", "7", "--stage", "ride"],
        ["dead", "requeue", "seven"],
        ["submit"],
        ["submit", "travel", "no-such-file"],
        ["submit", "travel", os.devnull, "--url", "localhost:8080"],
        ["submit", "travel", os.devnull, "--url", "ftp://localhost"],
        ["submit", "travel", os.devnull, "--url", "http://"],
        ["submit", "travel", os.devnull, "--wait", "soon"],
        ["submit", "--wait", "travel", os.devnull],
    ],
    ids=" ".join,
)
def test_a_wrong_usage_ends_with_2(run: Run, arguments: list[str]) -> None:
    code, out, err = run(*arguments)

    assert (code, out) == (2, "")
    assert "Error: " in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["task", "list"], {}, "DATABASE_URL is not set"),
        (["task", "list"], {"DATABASE_URL": "mysql://ada:secret@host/db"}, "database_url: begins with postgresql://"),
        (["task", "list"], {"DATABASE_URL": NOBODY, "POSTROAD_SHEMA": "x"}, "did you mean POSTROAD_SCHEMA?"),
        (["task", "list", "--schema", "a b"], {"DATABASE_URL": NOBODY}, "schema: 'a b' must be"),
        (["task", "list", "--config", "no-such.toml"], {}, "no-such.toml cannot be read"),
        (["serve", "--port", "http"], {}, "--port: 'http' is not valid: not a whole number"),
        (["serve", "--grace", "soon"], {}, "--grace: 'soon' is not valid"),
        (["serve"], {"POSTROAD_PORT": "70000"}, "port: must be 0 to 65535"),
        (["serve", "--workers", "two"], {}, "--workers: 'two' is not valid: not a whole number"),
        (["serve"], {"POSTROAD_WORKERS": "0"}, "workers: must be 1 to 128, not 0"),
        (["up"], {"DATABASE_URL": NOBODY}, "--app (or POSTROAD_APP) is required"),
        (["up", "json:no_such"], {}, "json has no 'no_such'"),
        (["deploy"], {"DATABASE_URL": NOBODY}, "--app (or POSTROAD_APP) is required"),
        (["deploy", "no_such_module"], {"DATABASE_URL": NOBODY}, "there is no module 'no_such_module'"),
        (["stage", "--all"], {"POSTROAD_APP": "no_such_module"}, "there is no module 'no_such_module'"),
    ],
)
def test_a_bad_setting_ends_with_78_and_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], environment: dict[str, str], message: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    code, out, err = run(*arguments)

    assert (code, out) == (78, "")
    assert err.startswith("postroad: ")
    assert message in err
    assert "secret" not in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["migrate"],
        ["audit"],
        ["task", "list"],
        ["task", "show", ID],
        ["dead", "list"],
        ["dead", "requeue", "--all"],
    ],
    ids=" ".join,
)
def test_a_server_that_is_away_ends_with_69_and_is_named_without_its_password(run: Run, arguments: list[str]) -> None:
    code, out, err = run(*arguments, "--database-url", NOBODY)

    assert (code, out) == (69, "")
    assert err.startswith("postroad: Postgres at postgresql://postgres:***@127.0.0.1:1/postgres does not answer: ")
    assert err.count("\n") == 1


def test_the_sql_of_the_migration_needs_no_server(run: Run) -> None:
    code, out, err = run("migrate", "--sql", "--schema", "roads")

    assert (code, err) == (0, "")
    assert "create table roads.task (" in out
    assert "postroad." not in out.replace("'postroad.", "'")
    assert out.rstrip().endswith("COMMIT;")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["http://127.0.0.1:1/?token=hidden"], 69, "http://127.0.0.1:1/?*** does not answer: cannot connect to 127."),
        (["http://169.254.169.254/"], 78, "is an address of this machine's own network or its cloud"),
        (["host/path"], 78, "'host/path' is no URL of a service"),
        (["http://host/", "--secret", "whsec_hidden"], 78, "a secret is whsec_ and 24 to 64 bytes in base64"),
        (["http://host/", "--secret", "${HIDDEN}"], 78, "the environment variable HIDDEN is not set"),
        (["http://host/", "--header", "authorization hidden"], 2, "a header is of the form NAME=VALUE"),
        (["http://host/", "--payload", "{"], 2, "--payload: neither a file nor JSON: Expecting property name"),
        (["http://host/", "--results", "7"], 2, "--results: results are an object"),
        (["http://host/", "--timeout", "0"], 2, "'0' is not more than 0 and at most an hour"),
        (["http://host/", "--callback", "--listen", "0.0.0.0:0"], 2, "say by --public-url how the service reaches us"),
        (["http://host/", "--callback", "--listen", "192.0.2.1:0"], 78, "--listen: "),
        (["orders.price"], 78, "--app (or POSTROAD_APP) is required"),
        (["orders.price", "--callback"], 2, "of a stage are those of its declaration"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_stage_test_says_why_it_cannot_begin(run: Run, arguments: list[str], code: int, said: str) -> None:
    ended, out, err = run("stage", "test", *arguments)

    assert (ended, out) == (code, "")
    assert said in err.splitlines()[-1]
    assert "hidden" not in err
