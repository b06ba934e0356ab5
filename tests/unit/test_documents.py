"""What the documents say of the code is true."""

import importlib
import pkgutil
import re
from dataclasses import fields
from pathlib import Path

import pytest

import postroad
from postroad.core.errors import PostroadError
from postroad.core.settings import Settings
from postroad.core.task import state_diagram

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


def test_the_states_are_drawn_from_the_transition_table() -> None:
    assert f"```mermaid\n{state_diagram()}\n```" in (ROOT / "docs/architecture.md").read_text("utf-8")


def test_every_file_of_the_house_is_on_the_map() -> None:
    house = (ROOT / "docs/architecture.md").read_text("utf-8").partition("## The house")[2]
    folders = ("core", "outbox", "relay", "stages", "intake", "client", "dashboard", "doctor", "testing")
    files = {file.name for folder in folders for file in (ROOT / folder).glob("*.py")} - {"__init__.py"}

    assert files - set(re.findall(r"`(\w+\.py)`", house)) == set()


def test_every_setting_is_listed_with_its_variable() -> None:
    listed = (ROOT / "docs/operating.md").read_text("utf-8")

    for setting in fields(Settings):
        assert f"`{setting.name}`" in listed
        own_names = ("database_url", "direct_url", "redis_url")
        variable = setting.name.upper() if setting.name in own_names else f"POSTROAD_{setting.name.upper()}"
        assert f"`{variable}`" in listed


def test_the_tree_of_errors_names_every_error() -> None:
    for module in pkgutil.walk_packages(postroad.__path__, "postroad."):
        if not module.name.endswith(("__main__", "env")) and ".versions" not in module.name:
            importlib.import_module(module.name)

    def names(error: type[Exception]) -> set[str]:
        return {error.__name__}.union(*(names(child) for child in error.__subclasses__()))

    drawn = set(re.findall(r"[├└]── (\w+)", PostroadError.__doc__ or ""))
    assert names(PostroadError) - {"PostroadError"} == drawn


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_that_are_there(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text("utf-8")):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_every_test_that_a_document_names_is_there() -> None:
    known = {
        name
        for file in (ROOT / "tests").glob("**/test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)
    }

    for document in DOCUMENTS:
        named = re.findall(r"`(test_\w+)`", document.read_text("utf-8"))
        assert [name for name in named if name not in known] == [], document.name
