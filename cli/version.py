"""``postroad version``."""

import platform
from importlib.metadata import PackageNotFoundError, version

import click


@click.command("version")
def version_command() -> None:
    """Print the version."""
    try:
        number = version("postroad")
    except PackageNotFoundError:
        number = "unknown (not installed)"
    click.echo(f"postroad {number}, Python {platform.python_version()}")
