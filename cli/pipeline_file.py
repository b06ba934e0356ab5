"""A pipeline that is declared in a file, ``orders.toml``: its stages are services, programs or Python functions.

::

    [pipeline]
    name = "orders"

    [stages.check]
    url = "http://check.internal/orders"
    timeout = "5s"

    [stages.convert]
    after = "check"
    command = ["./convert.sh", "--quality", "80"]

Whatever is wrong is told with the file, the line and the key.
"""

import importlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ..core.command_stage import CommandStage
from ..core.errors import AppError, DeclarationError
from ..core.http_stage import HttpStage
from ..core.pipeline import Handler, Pipeline
from ..core.settings import duration

T = TypeVar("T")

OPTIONS = ("after", "retries", "timeout", "concurrency", "rate", "burst", "max_running")
"""Keys that every stage may have."""

KINDS: Mapping[str, tuple[str, ...]] = {
    "url": ("secrets", "headers", "completion", "callback_timeout", "allow_link_local"),
    "command": ("environment", "directory"),
    "handler": (),
}
"""The key that says what does the work of a stage, of which it has one, and those that may stand beside that."""

_TYPES: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "name": (str, "a string"),
    "priorities": (bool, "true or false"),
    "schema": (str, "a string: the path of a JSON Schema, seen from this file"),
    "after": ((str, list), "the name of a stage, or a list of such names"),
    "retries": (int, "a whole number"),
    "timeout": ((int, float, str), 'seconds, or a duration such as "500ms", "15s" or "2m"'),
    "callback_timeout": ((int, float, str), 'seconds, or a duration such as "15s", "2m" or "1h"'),
    "concurrency": (int, "a whole number"),
    "rate": (str, 'a string such as "200/s"'),
    "burst": (int, "a whole number"),
    "max_running": (int, "a whole number"),
    "url": (str, "a string"),
    "secrets": ((str, list), "a string, or a list of two"),
    "headers": (dict, "a table of strings"),
    "completion": (str, "a string"),
    "allow_link_local": (bool, "true or false"),
    "command": (list, "a list of strings: the program, then each of its arguments"),
    "environment": (dict, "a table of strings"),
    "directory": (str, "a string"),
    "handler": (str, "a string: module:function"),
}


def load_pipeline_file(path: Path) -> Pipeline:
    """The pipeline that the file at ``path`` declares. Raises ``AppError``."""
    try:
        text = path.read_text("utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise AppError(f"--app: {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AppError(f"--app: {path} is no TOML: {error}") from error
    return _File(path, _lines_of(text)).pipeline(document)


class _File:
    """One file that is being read."""

    def __init__(self, path: Path, lines: Mapping[tuple[str, ...], int]) -> None:
        self._path = path
        self._lines = lines

    def pipeline(self, document: Mapping[str, Any]) -> Pipeline:
        self._known_keys((), document, ("pipeline", "stages"))
        head = self._table(("pipeline",), document.get("pipeline"))
        self._known_keys(("pipeline",), head, ("name", "priorities", "schema"))
        if "name" not in head:
            raise self._wrong(("pipeline",), 'the name is missing: name = "orders"')
        for key, value in head.items():
            self._check_type(("pipeline", key), value)
        priorities = head.get("priorities", False)
        pipeline = self._guarded(("pipeline", "name"), lambda: Pipeline(head["name"], priorities=priorities))
        if "schema" in head:
            place = ("pipeline", "schema")
            schema = self._schema(place, head["schema"])
            pipeline = self._guarded(place, lambda: Pipeline(head["name"], priorities=priorities, schema=schema))
        stages = self._table(("stages",), document.get("stages"))
        for name, table in stages.items():
            self._add(pipeline, name, self._table(("stages", name), table), stages)
        self._guarded(("stages",), pipeline.graph)
        return pipeline

    def _add(self, pipeline: Pipeline, name: str, table: Mapping[str, Any], stages: Mapping[str, Any]) -> None:
        place = ("stages", name)
        kinds = [kind for kind in KINDS if kind in table]
        if len(kinds) != 1:
            raise self._wrong(place, f"a stage has one of the keys {', '.join(KINDS)}, to say what does its work")
        self._known_keys(place, table, (*OPTIONS, kinds[0], *KINDS[kinds[0]]))
        for key, value in table.items():
            self._check_type((*place, key), value)
        for before in [table["after"]] if isinstance(table.get("after"), str) else table.get("after", []):
            if before not in stages:
                known = ", ".join(map(repr, stages))
                raise self._wrong(
                    (*place, "after"), f"{before!r} is not a stage of this pipeline; its stages are {known}"
                )
        values = {key: self._converted((*place, key), value) for key, value in table.items()}
        handler = self._handler(place, kinds[0], values)
        options = {key: values[key] for key in OPTIONS if key in values}
        # One by one, each on a pipeline of its own, to know which is wrong.
        for key in options:
            alone = {key: options[key]} | ({"rate": options["rate"]} if key == "burst" and "rate" in options else {})
            self._guarded((*place, key), partial(Pipeline(pipeline.name).add, name, handler, **alone))
        self._guarded(place, lambda: pipeline.add(name, handler, **options))

    def _handler(self, place: tuple[str, ...], kind: str, values: Mapping[str, Any]) -> Any:
        if kind == "handler":
            return self._function((*place, kind), values[kind])
        make: Callable[..., Any] = HttpStage if kind == "url" else CommandStage
        more = {key: values[key] for key in KINDS[kind] if key in values}
        link_local = {"allow_link_local": more["allow_link_local"]} if "allow_link_local" in more else {}
        self._guarded((*place, kind), partial(make, values[kind], **link_local))
        for key in more:
            self._guarded((*place, key), partial(make, values[kind], **link_local | {key: more[key]}))
        return make(values[kind], **more)

    def _schema(self, place: tuple[str, ...], name: str) -> Any:
        path = self._path.parent / name
        try:
            return json.loads(path.read_text("utf-8"))
        except OSError as error:
            raise self._wrong(place, f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise self._wrong(place, f"{path} is no JSON: {error}") from error

    def _function(self, place: tuple[str, ...], name: str) -> Handler:
        module, colon, attribute = name.partition(":")
        if not colon or not module or module.startswith("."):
            raise self._wrong(place, f"{name!r} is not of the form module:function")
        try:
            function = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise self._wrong(place, f"{name!r} cannot be imported: {error}") from error
        if not callable(function):
            raise self._wrong(place, f"{name!r} is not a function")
        return function  # type: ignore[no-any-return]

    def _converted(self, place: tuple[str, ...], value: Any) -> Any:
        if place[-1] not in ("timeout", "callback_timeout"):
            return value
        try:
            return duration(value) if isinstance(value, str) else timedelta(seconds=value)
        except (ValueError, OverflowError) as error:
            raise self._wrong(place, str(error)) from None

    def _table(self, place: tuple[str, ...], value: Any) -> Mapping[str, Any]:
        if not isinstance(value, dict) or not value:
            raise self._wrong(place, f"there is no table [{'.'.join(place)}], or it is empty")
        return value

    def _known_keys(self, place: tuple[str, ...], table: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for key in table:
            if key not in known:
                close = get_close_matches(key, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
                raise self._wrong((*place, key), f"no such key here; {hint}")

    def _check_type(self, place: tuple[str, ...], value: Any) -> None:
        kind, description = _TYPES[place[-1]]
        is_stray_bool = isinstance(value, bool) and kind is not bool
        if not isinstance(value, kind) or is_stray_bool:
            raise self._wrong(place, f"must be {description}, not {value!r}")

    def _guarded(self, place: tuple[str, ...], make: Callable[[], T]) -> T:
        try:
            return make()
        except DeclarationError as error:
            raise self._wrong(place, str(error)) from error

    def _wrong(self, place: tuple[str, ...], detail: str) -> AppError:
        where = next((self._lines[place[:end]] for end in range(len(place), 0, -1) if place[:end] in self._lines), None)
        line = "" if where is None else f", line {where}"
        return AppError(f"--app: {self._path}{line}: {'.'.join(place) or 'the file'}: {detail}")


def _lines_of(text: str) -> dict[tuple[str, ...], int]:
    """The line of each table and key of a TOML text, as they are written by people: one to a line."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            table = _parts(header[1])
            lines.setdefault(table, number)
        elif key := re.match(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""", line):
            lines.setdefault(table + _parts(key[1]), number)
    return lines


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
