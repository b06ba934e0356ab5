"""How a process of ours runs: until it is told to stop, and through what passes."""

import asyncio
import gc
import importlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ..core.backoff import Pause
from ..core.database import is_transient
from ..core.errors import first_line

log = logging.getLogger(__name__)

T = TypeVar("T")

YOUNG = 10_000
"""Objects more than there were before, after which Python looks for those that only hold each other."""


def run_process(main: Coroutine[Any, Any, Any]) -> Any:
    """Run ``main`` in an event loop, uvloop's if it is there; what it returns."""
    # What was imported stays: to walk through it again and again took a quarter of the intake's time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if sys.platform != "win32":
        try:
            factory = importlib.import_module("uvloop").new_event_loop
        except ImportError:
            factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def leave() -> None:
    """End at once, with 130."""
    logging.shutdown()
    os._exit(130)


def on_stop(stop: Callable[[], Any], *, again: Callable[[], Any] = leave) -> None:
    """Call ``stop`` at the first SIGTERM or SIGINT; at the second ``again``, by default leave at once, with 130."""
    loop = asyncio.get_running_loop()
    seen = False

    def handle() -> None:
        nonlocal seen
        if seen:
            again()
            return
        seen = True
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle)


async def insist(engine: AsyncEngine, work: Callable[[AsyncConnection], Awaitable[T]], name: str) -> T:
    """Do ``work`` in a transaction, again and again while Postgres is away."""
    pause = Pause()
    while True:
        try:
            async with engine.begin() as opened:
                return await work(opened)
        except Exception as error:
            if not is_transient(error):
                raise
            log.warning("%s pauses: %s", name, first_line(error))
        await asyncio.sleep(pause.next())
