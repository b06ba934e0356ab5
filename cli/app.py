"""Load the author's application: the pipelines that ``--app`` names."""

import importlib
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core.errors import AppError, DeclarationError, first_line
from ..core.pipeline import Pipeline, Stage
from .pipeline_file import load_pipeline_file


def load_app(name: str) -> list[Pipeline]:
    """The pipelines at ``module``, ``module:attribute``, ``folder/file.py`` or ``folder/file.py:attribute``; or the one
    that ``folder/file.toml`` declares.

    Without an attribute, all pipelines that are the module's own names. The current folder is on the path. Every
    graph is checked. Raises ``AppError`` and ``DeclarationError``.
    """
    if not name:
        raise AppError("--app (or POSTROAD_APP) is required: where your pipelines are, as module or module:attribute")
    if name.endswith(".toml"):
        _look_here()
        return [load_pipeline_file(Path(name))]
    place, _, attribute = name.partition(":")
    module = _import(place)
    found: Any = module
    for part in filter(None, attribute.split(".")):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise AppError(f"--app {name}: {place} has no {attribute!r}") from None
    pipelines = _pipelines(found)
    if not pipelines:
        raise AppError(f"--app {name}: no Pipeline there; declare one at the top of the module")
    names = [pipeline.name for pipeline in pipelines]
    if twice := {one for one in names if names.count(one) > 1}:
        raise AppError(f"--app {name}: two pipelines are named {twice.pop()!r}")
    for pipeline in pipelines:
        pipeline.graph()
    return pipelines


def select_stages(pipelines: Iterable[Pipeline], names: Sequence[str]) -> list[Stage]:
    """The stages named ``pipeline.stage``, or ``stage`` where one pipeline alone has it; all for no names.

    Raises ``AppError`` for one that there is not, or that several pipelines have.
    """
    stages = [stage for pipeline in pipelines for stage in pipeline.graph().values()]
    if not names:
        return stages
    selected: dict[str, Stage] = {}
    for name in names:
        matches = [stage for stage in stages if name in (stage.full_name, stage.name)]
        if not matches:
            known = ", ".join(stage.full_name for stage in stages)
            raise AppError(f"there is no stage {name!r}; there are {known}")
        if len(matches) > 1:
            raise AppError(f"{name!r} is ambiguous: {', '.join(stage.full_name for stage in matches)}")
        selected[matches[0].full_name] = matches[0]
    return list(selected.values())


def _look_here() -> Path:
    """Put the current folder on the path; which that is."""
    here = Path.cwd()
    if str(here) not in sys.path:
        sys.path.insert(0, str(here))
    return here


def _import(place: str) -> ModuleType:
    here = _look_here()
    path = Path(place)
    if path.suffix != ".py" and not path.is_dir():
        return _import_module(place)
    if not path.exists():
        raise AppError(f"--app: there is no file {place}")
    file = path.resolve()
    if not file.is_relative_to(here):
        raise AppError(f"--app: {place} is not in or below the current folder")
    parts = file.relative_to(here).parts
    module = _import_module(".".join(parts).removesuffix(".py"))
    if file.suffix == ".py" and not file.samefile(module.__file__ or here):
        raise AppError(f"--app: {place} has the name of another module, {module.__file__}: rename it")
    return module


def _import_module(name: str) -> ModuleType:
    if not name or name.startswith("."):
        raise AppError(f"--app: {name!r} is not the name of a module")
    try:
        return importlib.import_module(name)
    except DeclarationError:
        raise
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise AppError(f"--app: there is no module {name!r} in {Path.cwd()} or on the path") from error
        raise AppError(f"--app: {name} needs a module that is not installed: {error.name}") from error
    except Exception as error:  # it is the author's code that runs here
        frames = traceback.extract_tb(error.__traceback__)
        frame = next(frame for frame in reversed(frames) if not frame.filename.startswith("<"))
        where = "" if isinstance(error, SyntaxError) else f" ({frame.filename}, line {frame.lineno})"
        raise AppError(
            f"--app: {name} cannot be imported{where}: {type(error).__name__}: {first_line(error)}"
        ) from error


def _pipelines(found: Any) -> list[Pipeline]:
    if isinstance(found, Pipeline):
        return [found]
    if isinstance(found, ModuleType):
        found = vars(found).values()
    if isinstance(found, Iterable) and not isinstance(found, str | bytes):
        return list({id(one): one for one in found if isinstance(one, Pipeline)}.values())
    return []
