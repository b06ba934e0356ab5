"""How rows are printed: as a table for people, as JSON for programs."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    """Print ``rows``: as one JSON array, or the given columns as a table, lined up."""
    if as_json:
        click.echo(json.dumps([dict(row) for row in rows], default=plain))
        return
    table = [list(columns), *([cell(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[place]) for line in table) for place in range(len(columns))]
    for line in table:
        click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def plain(value: Any) -> Any:
    """``value`` as JSON has it; for ``json.dumps(default=…)``."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def cell(value: Any) -> str:
    """``value`` in a table: one line, nothing for ``None``."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone().isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False)
    text = str(value).replace("\n", " ")
    return text if len(text) <= 80 else f"{text[:79]}…"
