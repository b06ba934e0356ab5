"""``--app``: where pipelines are found, and what is said when they are not."""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from postroad import Pipeline, Task
from postroad.cli.app import load_app, select_stages
from postroad.core.errors import AppError, DeclarationError

_numbers = itertools.count()

ONE = """
from postroad import Pipeline, Task

travel = Pipeline("travel")

@travel.stage()
async def pack(task: Task) -> None: ...

@travel.stage(after="pack")
async def ride(task: Task) -> None: ...
"""

TWO = (
    ONE
    + """
back = Pipeline("return")
back.stage("ride")(ride)
"""
)

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module into the current folder, or into ``folder`` below it, and returns the name that it gave it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)

    def write(text: str, *, folder: str = ".", name: str | None = None) -> str:
        name = name or f"road_app_{next(_numbers)}"
        (tmp_path / folder).mkdir(exist_ok=True, parents=True)
        (tmp_path / folder / f"{name}.py").write_text(text)
        return name

    yield write
    for name in set(sys.modules) - known:
        del sys.modules[name]


def names(pipelines: list[Pipeline]) -> list[str]:
    return [pipeline.name for pipeline in pipelines]


def test_an_app_is_a_module_or_one_of_its_attributes(write: Write) -> None:
    module = write(TWO + "all_of_them = [back, travel]\n\nclass Inn:\n    door = back\n")

    assert names(load_app(module)) == ["travel", "return"]
    assert names(load_app(f"{module}:back")) == ["return"]
    assert names(load_app(f"{module}:all_of_them")) == ["return", "travel"]
    assert names(load_app(f"{module}:Inn.door")) == ["return"]


def test_an_app_is_a_file_or_a_folder(write: Write, tmp_path: Path) -> None:
    module = write(ONE)
    package = f"road_package_{next(_numbers)}"
    write(ONE, folder=package, name="__init__")
    write(TWO, folder=f"{package}/inner", name="pipelines")

    assert names(load_app(f"{module}.py")) == ["travel"]
    assert names(load_app(f"./{module}.py:travel")) == ["travel"]
    assert names(load_app(str(tmp_path / f"{module}.py"))) == ["travel"]
    assert names(load_app(package)) == names(load_app(f"{package}/")) == ["travel"]
    assert names(load_app(f"{package}/inner/pipelines.py:back")) == ["return"]
    assert names(load_app(f"{package}.inner.pipelines")) == ["travel", "return"]


def test_a_pipeline_of_several_names_is_one(write: Write) -> None:
    module = write(ONE + "also = travel\n")

    assert names(load_app(module)) == ["travel"]


def test_the_modules_beside_the_app_can_be_imported(write: Write) -> None:
    beside = write("LIMIT = 3\n")
    module = write(f"from {beside} import LIMIT\n{ONE}")

    assert names(load_app(f"{module}.py")) == ["travel"]


@pytest.mark.parametrize(
    ("app", "message"),
    [
        ("", "--app (or POSTROAD_APP) is required"),
        ("no_such_module", "there is no module 'no_such_module' in "),
        ("no_such_module:attribute", "there is no module 'no_such_module' in "),
        ("json.no_such", "there is no module 'json.no_such' in "),
        ("no_such.py", "there is no file no_such.py"),
        ("../elsewhere.py", "there is no file ../elsewhere.py"),
        ("/", "is not in or below the current folder"),
        ("json", "no Pipeline there; declare one at the top of the module"),
        ("json:dumps", "no Pipeline there"),
        ("json:no_such", "json has no 'no_such'"),
        ("json:dumps.no_such", "json has no 'dumps.no_such'"),
        (":travel", "'' is not the name of a module"),
        (".", "'' is not the name of a module"),
        (".relative", "'.relative' is not the name of a module"),
    ],
)
@pytest.mark.usefixtures("write")
def test_an_app_that_is_not_there_is_an_error_that_says_so(app: str, message: str) -> None:
    with pytest.raises(AppError) as caught:
        load_app(app)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_dependency\n", "needs a module that is not installed: no_such_dependency"),
        ("import json.no_such\n", "needs a module that is not installed: json.no_such"),
        ("from json import no_such\n", "line 1): ImportError: cannot import name 'no_such'"),
        ("def pack(:\n", "cannot be imported: SyntaxError: "),
        ("\n\nLIMIT = int('many')\n", "line 3): ValueError: invalid literal for int()"),
        ("\nimport os\nKEY = os.environ['NO_SUCH_KEY']\n", "line 3): KeyError: 'NO_SUCH_KEY'"),
        (ONE + "travel.ride()\n", "AttributeError: 'Pipeline' object has no attribute 'ride'"),
    ],
)  # fmt: skip
def test_an_app_that_breaks_is_an_error_that_says_where(write: Write, text: str, message: str) -> None:
    module = write(text)

    with pytest.raises(AppError) as caught:
        load_app(module)

    assert module in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_app_outside_of_the_current_folder_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    module = write(ONE)
    Path("inner").mkdir()
    monkeypatch.chdir("inner")

    with pytest.raises(AppError, match="is not in or below the current folder"):
        load_app(f"../{module}.py")


def test_a_file_with_the_name_of_another_module_is_refused(write: Write) -> None:
    write(ONE, name="json")

    with pytest.raises(AppError, match=r"json\.py has the name of another module"):
        load_app("json.py")


def test_two_pipelines_of_one_name_are_refused(write: Write) -> None:
    module = write(ONE + "again = Pipeline('travel')\n\n@again.stage()\nasync def rest(task: Task) -> None: ...\n")

    with pytest.raises(AppError, match="two pipelines are named 'travel'"):
        load_app(module)


def test_a_graph_that_cannot_be_is_a_declaration_error(write: Write) -> None:
    circle = write(ONE.replace("stage()", "stage(after='ride')"))
    doubled = write(ONE + "travel.stage('ride')(pack)\n")
    empty = write("from postroad import Pipeline\ntravel = Pipeline('travel')\n")

    for module, message in ((circle, "wait for each other"), (doubled, "is declared twice"), (empty, "has no stage")):
        with pytest.raises(DeclarationError, match=message):
            load_app(module)


def made(name: str, *stages: str) -> Pipeline:
    pipeline = Pipeline(name)
    for stage in stages:

        @pipeline.stage(stage)
        async def handler(task: Task) -> None: ...

    return pipeline


ROADS = [made("travel", "pack", "ride"), made("return", "load", "ride")]


@pytest.mark.parametrize(
    ("given", "selected"),
    [
        ([], ["travel.pack", "travel.ride", "return.load", "return.ride"]),
        (["pack"], ["travel.pack"]),
        (["return.ride", "load"], ["return.ride", "return.load"]),
        (["pack", "travel.pack"], ["travel.pack"]),
    ],
)
def test_stages_are_selected_by_name(given: list[str], selected: list[str]) -> None:
    assert [stage.full_name for stage in select_stages(ROADS, given)] == selected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ride", "'ride' is ambiguous: travel.ride, return.ride"),
        ("rest", "there is no stage 'rest'; there are travel.pack, travel.ride, return.load, return.ride"),
        ("travel", "there is no stage 'travel'"),
        ("", "there is no stage ''"),
    ],
)
def test_a_stage_that_is_none_or_several_is_refused(given: str, message: str) -> None:
    with pytest.raises(AppError) as caught:
        select_stages(ROADS, [given])

    assert str(caught.value).startswith(message)
