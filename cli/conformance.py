"""``postroad stage test``: whether a service or a program keeps to the contract of a stage."""

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from ..core.command_stage import CommandStage
from ..core.errors import UnstorableError
from ..core.http_stage import HttpStage
from ..core.jsontext import decode
from ..core.pipeline import Pipeline, Stage
from ..core.settings import duration
from ..stages.conformance import Check, ProgramConformance, ServiceConformance, Verdict, Work
from .app import load_app, select_stages
from .listener import listening
from .options import options, read_settings
from .tables import print_rows


def _time(text: str) -> timedelta:
    try:
        time = duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if not timedelta() < time <= timedelta(hours=1):
        raise click.BadParameter(f"{text!r} is not more than 0 and at most an hour")
    return time


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is not of the form HOST:PORT")
    return host.strip("[]"), int(port)


@click.command("test")
@click.argument("target", metavar="URL|PIPELINE.STAGE")
@options("app")
@click.option(
    "--payload", "payload_text", metavar="FILE|JSON", default="{}", show_default=True, help="What a good task brings."
)
@click.option(
    "--results",
    "results_text",
    metavar="FILE|JSON",
    default="{}",
    show_default=True,
    help="What the stages before it returned, by their names.",
)
@click.option("--secret", "secrets", metavar="SECRET", multiple=True, help="Signs requests: whsec_… or '${NAME}'.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="One more header; '${NAME}' as well.")
@click.option("--timeout", metavar="TIME", type=_time, help="How long an answer may take. [default: 30s]")
@click.option("--callback", is_flag=True, help="The service answers 202, and reports later.")
@click.option(
    "--callback-timeout",
    metavar="TIME",
    type=_time,
    default="30s",
    show_default=True,
    help="How long a report may take.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    type=_address,
    default="127.0.0.1:0",
    help="Where reports are taken. [default: 127.0.0.1, a free port]",
)
@click.option("--public-url", metavar="URL", help="How the service reaches that. [default: http:// and the address]")
@click.option("--allow-link-local", is_flag=True, help="Also call link-local addresses.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def test_command(
    target: str,
    payload_text: str,
    results_text: str,
    secrets: tuple[str, ...],
    headers: tuple[str, ...],
    timeout: timedelta | None,
    callback: bool,
    callback_timeout: timedelta,
    listen: tuple[str, int],
    public_url: str | None,
    allow_link_local: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Try whether a service keeps to the contract of a stage (docs/services.md). Needs no server of ours.

    The service is a URL, or a stage of --app: then its URL, secrets, headers and timeout are those of the declaration,
    and it may be a program. It does its work for the tasks that it is sent, some twelve of them.

    Exit code 5 if a requirement fails; a warning is advice.
    """
    payload, results = _json(payload_text, "--payload"), _json(results_text, "--results")
    if not isinstance(results, dict):
        raise click.BadParameter("results are an object, with a member for each stage", param_hint="--results")
    work = Work(payload, results)
    if any(mark in target for mark in "/:$"):
        declared = HttpStage(
            target,
            secrets=secrets,
            headers=dict(_header(one) for one in headers),
            completion="callback" if callback else "answer",
            allow_link_local=allow_link_local,
        )
        pipeline = Pipeline("conformance")
        pipeline.add("test", declared, timeout=timeout or timedelta(seconds=30))
        stage = pipeline.graph()["test"]
    else:
        if secrets or headers or callback or allow_link_local:
            raise click.UsageError("secrets, headers and the like of a stage are those of its declaration")
        (stage,) = select_stages(load_app(read_settings(given).app), [target])
        if timeout is not None:
            stage = replace(stage, timeout=timeout)
    if stage.hands_over and listen[0] in ("0.0.0.0", "::") and public_url is None:
        raise click.UsageError("say by --public-url how the service reaches us")

    async def run() -> list[Check]:
        async with _checks(stage, work, listen, public_url, callback_timeout) as checks:
            return [_told(check) async for check in checks]

    done = asyncio.run(run())
    print_rows([asdict(check) for check in done], list(Check.__annotations__), as_json=as_json)
    counts = Counter(check.verdict for check in done)
    click.echo(", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict]), err=True)
    if counts[Verdict.FAILED]:
        raise click.exceptions.Exit(5)


@contextlib.asynccontextmanager
async def _checks(
    stage: Stage, work: Work, listen: tuple[str, int], public_url: str | None, within: timedelta
) -> AsyncIterator[AsyncIterator[Check]]:
    match stage.handler:
        case HttpStage() as declared if declared.hands_over is None:
            yield ServiceConformance(stage, declared, work).checks()
        case HttpStage() as declared:
            async with listening(listen, public_url) as listener:
                yield ServiceConformance(
                    stage, declared, work, reports=listener, public_url=listener.url, report_within=within
                ).checks()
        case CommandStage() as program:
            yield ProgramConformance(stage, program, work).checks()
        case _:
            raise click.UsageError(f"{stage.full_name} is a Python function; a service or a program can be tested")


def _json(text: str, option: str) -> Any:
    """What is given as JSON, or in a file as JSON."""
    try:
        return decode(text.encode())
    except UnstorableError as error:
        path = Path(text)
        try:
            return decode(path.read_bytes())
        except OSError:
            why = error.detail.removeprefix("the body is no JSON: ")
            raise click.BadParameter(f"neither a file nor JSON: {why}", param_hint=option) from None
        except UnstorableError as in_file:
            raise click.BadParameter(f"{path}: {in_file}", param_hint=option) from None


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter("a header is of the form NAME=VALUE", param_hint="--header")
    return name, value


def _told(check: Check) -> Check:
    """``check``; who waits at a terminal sees that it has ended."""
    if sys.stderr.isatty():
        click.echo(f"{check.case}: {check.verdict}", err=True)
    return check
