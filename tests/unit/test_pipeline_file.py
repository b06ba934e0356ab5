"""A pipeline in a file: what it declares, and where a mistake in it is."""

from datetime import timedelta
from pathlib import Path

import pytest

from postroad import CommandStage, HttpStage
from postroad.cli.app import load_app
from postroad.core.errors import AppError
from postroad.core.rate import Rate

WHOLE = """
# What happens to an order.
[pipeline]
name = "orders"

[stages.check]
url = "https://check.internal/orders"
secrets = "${CHECK_SECRET}"
headers = { authorization = "Bearer ${CHECK_TOKEN}" }
timeout = "500ms"
retries = 8
rate = "200/s"
burst = 20

[stages.convert]
after = "check"
command = ["./convert.sh", "--quality", "80"]
environment = { LANG = "C" }
concurrency = 2
max_running = 5

[stages.record]
after = ["check", "convert"]
handler = "textwrap:dedent"

[stages.ship]
after = "record"
url = "https://ship.internal/orders"
completion = "callback"
callback_timeout = "2h"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_declares_what_code_would(folder: Path) -> None:
    (folder / "orders.toml").write_text(WHOLE)

    (pipeline,) = load_app("orders.toml")

    graph = pipeline.graph()
    assert list(graph) == ["check", "convert", "record", "ship"]
    check, convert, record, ship = graph.values()
    assert check.handler == HttpStage(
        "https://check.internal/orders",
        secrets=("${CHECK_SECRET}",),
        headers={"authorization": "Bearer ${CHECK_TOKEN}"},
    )
    assert (check.timeout, check.retries, check.rate) == (timedelta(seconds=0.5), 8, Rate(200, 20))
    assert convert.handler == CommandStage(["./convert.sh", "--quality", "80"], environment={"LANG": "C"})
    assert (convert.after, convert.concurrency, convert.max_running) == (("check",), 2, 5)
    assert (record.after, callable(record.handler)) == (("check", "convert"), True)
    assert isinstance(ship.handler, HttpStage)
    assert (ship.handler.completion, ship.handler.callback_timeout) == ("callback", timedelta(hours=2))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[pipeline\n", "orders.toml is no TOML: Expected"),
        ("", "orders.toml: pipeline: there is no table [pipeline]"),
        ('[pipeline]\nname = "Orders"\n', "line 2: pipeline.name: 'Orders' cannot name a pipeline"),
        ('[pipeline]\nname = "o"\nschema = "no.json"\n', "line 3: pipeline.schema: no.json cannot be read"),
        ("[pipeline]\nname = 7\n", "line 2: pipeline.name: must be a string, not 7"),
        ('[pipeline]\nnam = "o"\n', "line 2: pipeline.nam: no such key here; did you mean name?"),
        ('[pipeline]\nname = "o"\n', "stages: there is no table [stages]"),
        ("{good}[stages.b]\nretries = 3\n", "line 5: stages.b: a stage has one of the keys url, command, handler"),
        ('{good}url = "http://x"\ncommand = ["y"]\n', "is no TOML"),
        ('{good}command = ["y"]\n', "line 3: stages.a: a stage has one of the keys"),
        ('{good}retires = 3\n', "line 5: stages.a.retires: no such key here; did you mean retries?"),
        ('{good}directory = "."\n', "line 5: stages.a.directory: no such key here"),
        ("{good}retries = -1\n", "line 5: stages.a.retries: stage 'o.a': retries must be 0 or more, not -1"),
        ("{good}retries = true\n", "line 5: stages.a.retries: must be a whole number, not True"),
        ('{good}timeout = "soon"\n', "line 5: stages.a.timeout: not a duration such as 500ms"),
        ("{good}timeout = 0\n", "line 5: stages.a.timeout: stage 'o.a': timeout must be"),
        ('{good}\nrate = "0/s"\n', "line 6: stages.a.rate: stage 'o.a': '0/s' is not between"),
        ('{good}rate = "-1"\n', "line 5: stages.a.rate: stage 'o.a': '-1' is no rate"),
        ('{good}rate = "1e9/s"\n', "line 5: stages.a.rate: stage 'o.a': '1e9/s' is no rate"),
        ('{good}rate = "2000000/s"\n', "line 5: stages.a.rate: stage 'o.a': '2000000/s' is not between"),
        ("{good}burst = 3\n", "line 5: stages.a.burst: stage 'o.a': a burst is of a rate"),
        ('{good}rate = "5/s"\nburst = 0\n', "line 6: stages.a.burst: stage 'o.a': burst must be"),
        ('{good}after = "z"\n', "line 5: stages.a.after: 'z' is not a stage of this pipeline; its stages are 'a'"),
        ("{good}after = [3]\n", "line 5: stages.a.after: 3 is not a stage"),
        ('{good}secrets = "hunter2"\n', "line 5: stages.a.secrets: a secret is whsec_ and 24 to 64 bytes in base64"),
        ('{good}headers = { host = "x" }\n', "line 5: stages.a.headers: the header 'host' is set by postroad itself"),
        ('{good}completion = "later"\n', "line 5: stages.a.completion: completion is 'answer' or 'callback'"),
        (
            '[pipeline]\nname = "o"\n[stages.a]\nurl = "http://u:secret@169.254.169.254/"\n',
            "line 4: stages.a.url: 'http://***@169.254.169.254/' is an address of",
        ),
        ('{head}url = "ftp://x"\n', "line 4: stages.a.url: 'ftp://x' is no URL of a service"),
        ('{head}command = []\n', "line 4: stages.a.command: command is a list"),
        ('{head}command = ["a", 3]\n', "line 4: stages.a.command: command is a list of strings"),
        ('{head}handler = "nowhere:f"\n', "line 4: stages.a.handler: 'nowhere:f' cannot be"),
        ('{head}handler = "textwrap"\n', "line 4: stages.a.handler: 'textwrap' is not of"),
        (
            '{good}after = "b"\n[stages.b]\nurl = "http://x"\nafter = "a"\n',
            "stages of pipeline 'o' wait for each other",
        ),
    ],
)  # fmt: skip
def test_a_mistake_names_the_file_the_line_and_the_key(text: str, said: str, folder: Path) -> None:
    text = text.replace("{good}", '{head}url = "http://x"\n').replace("{head}", '[pipeline]\nname = "o"\n[stages.a]\n')
    (folder / "orders.toml").write_text(text)

    with pytest.raises(AppError) as caught:
        load_app("orders.toml")

    assert str(caught.value).startswith("--app: orders.toml")
    assert said in str(caught.value)
    assert "secret@" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(AppError, match=r"orders\.toml cannot be read: No such file"):
        load_app("orders.toml")
