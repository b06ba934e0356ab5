"""The command as a whole: its subcommands, and how errors become exit codes.

stdout is data, stderr the rest. Exit codes: 0 ok, 1 failure, 2 usage, 3 not found, 4 refused, 5 check failed,
69 a server is unreachable, 75 the time to wait is over, 78 bad settings, 130 interrupted.

Subcommands are imported when they are asked for, so that ``postroad --help`` does not wait for database drivers.
"""

import importlib
import sys

import click

from ..core.errors import (
    AppError,
    DeclarationError,
    NotFoundError,
    PostroadError,
    RefusedError,
    SchemaError,
    SettingsError,
    UnreachableError,
    UnstorableError,
)

_COMMANDS = {
    "up": ("up", "Run everything in one terminal: servers, migration, intake, relay, stages."),
    "demo": ("demo", "Watch 1,000 tasks travel while processes are killed, on embedded servers."),
    "migrate": ("migrate", "Bring the database to the newest version."),
    "key": ("keys", "Make keys of the HTTP door; list and revoke them."),
    "grant": ("grant", "Let another role submit in SQL, or read, without other rights on the tables."),
    "deploy": ("schema", "Record the app's pipelines in Postgres."),
    "serve": ("serve", "Run the intake: the HTTP door."),
    "relay": ("processes", "Run a relay: from the outbox to the streams."),
    "stage": ("stages", "Run stages, from the streams to the handlers; list them, set their limits."),
    "submit": ("submit", "Submit tasks from NDJSON, and wait for their ends."),
    "schedule": ("schedule", "Submit tasks by cron lines."),
    "task": ("tasks", "Look tasks up; cancel them, or run a stage again."),
    "explain": ("explain", "Say why a task is not done."),
    "dead": ("dead", "Look at dead letters; requeue or discard them."),
    "pause": ("pause", "Pause a stage: its workers read nothing more."),
    "resume": ("pause", "Resume a stage that was paused."),
    "prune": ("prune", "Drop what is past its retention."),
    "doctor": ("doctor", "Look the deployment over, and say what to do."),
    "audit": ("schema", "Count the violations of every invariant."),
    "version": ("version", "Print the version."),
}

_EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (NotFoundError, 3),
    (RefusedError, 4),
    (UnreachableError, 69),
    (SettingsError, 78),
    (SchemaError, 78),
    (AppError, 78),
    (DeclarationError, 78),
    (UnstorableError, 2),
    (PostroadError, 1),
)


class _Commands(click.Group):
    """Finds a subcommand in the module that holds it."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module = importlib.import_module(f"..{_COMMANDS[name][0]}", __name__)
        command: click.Command = getattr(module, f"{name}_command")
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cli() -> None:
    """A task pipeline on Postgres and Redis Streams: nothing lost, no effect twice."""


def main() -> None:
    """Run the command; errors of ours end it with one line and the exit code of their kind."""
    try:
        code = cli.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has had enough; Python must not complain while it flushes.
        sys.stderr.close()
        sys.exit(1)
    except PostroadError as error:
        click.echo(f"postroad: {error}", err=True)
        sys.exit(next(code for kind, code in _EXIT_CODES if isinstance(error, kind)))
