"""The folders at the root, their links under postroad/, and that what is built from them is whole."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "cli",
    "client",
    "core",
    "dashboard",
    "doctor",
    "intake",
    "migrations",
    "outbox",
    "relay",
    "stages",
    "testing",
)
IMPORT = "import postroad, pathlib; print(pathlib.Path(postroad.__file__).parents[1].name)"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_and_its_link_are_one(folder: str) -> None:
    link = ROOT / "postroad" / folder

    assert link.is_symlink(), "postroad/ must hold links: was this checked out without symlink support?"
    assert link.readlink() == Path("..", folder)
    assert link.samefile(ROOT / folder)


def test_there_are_no_other_links() -> None:
    assert {path.name for path in (ROOT / "postroad").iterdir() if path.is_symlink()} == set(FOLDERS)


def test_the_import_package_is_the_checkout() -> None:
    import postroad

    assert Path(postroad.__file__).samefile(ROOT / "postroad" / "__init__.py")


def test_whatever_is_imported_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = sum(project["optional-dependencies"].values(), start=project["dependencies"])
    declared = {re.split(r"[^\w.-]", requirement)[0] for requirement in requirements}
    distributions = packages_distributions()

    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*.py"):
            for module in set(imported(file)) - sys.stdlib_module_names - {"postroad"}:
                names = {name.lower().replace("_", "-") for name in distributions[module]}
                assert declared & names, f"{file} imports {module}"


@pytest.mark.timeout(300)
def test_a_wheel_built_from_the_sdist_holds_every_file(tmp_path: Path) -> None:
    build = "import hatchling.build as b, sys; print(getattr(b, sys.argv[1])(sys.argv[2]))"
    expected = {
        f"postroad/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    } | {"postroad/__init__.py", "postroad/py.typed"}

    sdist = run(ROOT, "-c", build, "build_sdist", str(tmp_path)).strip().splitlines()[-1]
    run(tmp_path, "-m", "tarfile", "-e", sdist, "unpacked")
    (source,) = (tmp_path / "unpacked").iterdir()
    wheel = run(source, "-c", build, "build_wheel", str(tmp_path)).strip().splitlines()[-1]

    with zipfile.ZipFile(tmp_path / wheel) as archive:
        held = set(archive.namelist())
    assert {path for path in held if path.startswith("postroad/")} == expected
    assert {Path(path).suffix for path in expected} >= {".py", ".sql", ".lua"}
    assert any(path.endswith("licenses/LICENSE") for path in held)
    # What has to work is the wheel, with nothing of the checkout in sight.
    home = run(tmp_path, "-I", "-c", f"import sys; sys.path.insert(0, {wheel!r}); {IMPORT}").strip()
    assert home == wheel


def imported(file: Path) -> Iterator[str]:
    """The top-level modules that ``file`` imports absolutely, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.partition(".")[0]


def run(cwd: Path, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert result.returncode == 0, result.stdout
    return result.stdout
