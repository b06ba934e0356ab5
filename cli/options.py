"""Options that several commands share, and the settings that come of them."""

import getpass
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from ..core.moment import parse_rfc3339
from ..core.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])

SERVERS = ("database_url", "redis_url", "schema", "prefix")
"""Where the servers are, and what is ours there."""

_KNOWN = {
    "database_url": click.option("--database-url", metavar="URL", help="Postgres. [env: DATABASE_URL]"),
    "direct_url": click.option(
        "--direct-url", metavar="URL", help="Postgres itself, if --database-url is a pooler. [env: DIRECT_URL]"
    ),
    "redis_url": click.option("--redis-url", metavar="URL", help="Redis or Valkey. [env: REDIS_URL]"),
    "app": click.option("--app", metavar="MODULE[:ATTRIBUTE]", help="Where the pipelines are. [env: POSTROAD_APP]"),
    "schema": click.option("--schema", metavar="NAME", help="Schema of our tables. [default: postroad]"),
    "prefix": click.option("--prefix", metavar="NAME", help="First part of every Redis key. [default: postroad]"),
    "lease": click.option("--lease", metavar="TIME", help="A worker silent for so long is dead. [default: 15s]"),
    "grace": click.option("--grace", metavar="TIME", help="How long stopping may take. [default: 25s]"),
    "retention": click.option("--retention", metavar="TIME", help="How long events and tasks are kept. [default: 30d]"),
    "host": click.option("--host", metavar="ADDRESS", help="Address to listen on. [default: 127.0.0.1]"),
    "port": click.option("--port", metavar="NUMBER", help="Port to listen on. [default: 8080]"),
    "workers": click.option("--workers", metavar="NUMBER", help="Processes of the intake on one port. [default: 1]"),
    "auth": click.option(
        "--auth", metavar="WHEN", help="Keys of the door: auto, required or off. [default: auto, once there is one]"
    ),
    "metrics": click.option(
        "--metrics", metavar="HOST:PORT", help="Serve metrics to Prometheus there, or on the next free port."
    ),
    "config": click.option(
        "--config", metavar="FILE", type=click.Path(path_type=Path), help="Settings. [default: ./postroad.toml]"
    ),
    "log_level": click.option(
        "--log-level",
        default="info",
        show_default=True,
        type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
        help="Least level of the log lines, on stderr.",
    ),
}


def who_and_why(command: Command) -> Command:
    """Give a command ``--by`` and ``--reason``, which are recorded with what it changes."""
    command = click.option("--reason", help="Why; recorded with what changes.")(command)
    return click.option("--by", default=user, show_default="you", help="Who asks; recorded with what changes.")(command)


def checked_moment(context: click.Context, parameter: click.Parameter, value: str | None) -> datetime | None:
    """A moment that an option gives, as a callback of click's."""
    try:
        return None if value is None else parse_rfc3339(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def options(*names: str) -> Callable[[Command], Command]:
    """Give a command the options of these names, and ``--config``."""

    def decorate(command: Command) -> Command:
        for name in reversed((*names, "config")):
            command = _KNOWN[name](command)
        return command

    return decorate


def read_settings(given: dict[str, Any]) -> Settings:
    """The settings of this process, of the options that a command was given. Raises ``SettingsError``."""
    flags = {name: value for name, value in given.items() if name in _KNOWN and name not in ("config", "log_level")}
    return Settings.read(flags, file=given.get("config"))


def user() -> str:
    """Who runs this. In a container that is often a number without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # Python 3.13 made it an OSError
        return f"uid {os.getuid()}"
