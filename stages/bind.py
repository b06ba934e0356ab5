"""What does the work of a stage in this process: a function as it is, a service or a program by a handler of ours."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from sqlalchemy.ext.asyncio import AsyncEngine

from ..core.command_stage import CommandStage
from ..core.http_stage import HttpStage
from ..core.pipeline import Stage
from ..core.settings import Settings
from .breaker import Breaker
from .command import CommandHandler
from .http import SLACK, HttpHandler


async def _nothing() -> None: ...


@dataclass(frozen=True, slots=True)
class Bound:
    """A ``stage`` whose handler is a function, and what belongs to it. ``close`` it at the end."""

    stage: Stage
    breaker: Breaker | None = None
    close: Callable[[], Awaitable[None]] = _nothing


def bind(stage: Stage, engine: AsyncEngine, settings: Settings) -> Bound:
    """Make ``stage`` one that can be run here. Raises ``DeclarationError`` if a variable or a program is missing."""
    match stage.handler:
        case HttpStage() as service:
            breaker = Breaker(stage, engine, settings.schema)
            calls = HttpHandler(stage, service, breaker, public_url=settings.public_url)
            return Bound(replace(stage, handler=calls.run, timeout=stage.timeout + SLACK), breaker, calls.close)
        case CommandStage() as program:
            return Bound(replace(stage, handler=CommandHandler(stage, program).run))
        case _:
            return Bound(stage)
