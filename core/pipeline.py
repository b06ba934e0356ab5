"""What an author declares: a pipeline, its stages, and which waits for which.

A declaration is checked as a whole by ``Pipeline.graph()``, which every process calls before it does anything else:
stages may name stages that are declared further down, so a single decorator cannot know.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from typing import Any, get_args, get_type_hints

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from .command_stage import CommandStage
from .errors import DeclarationError
from .http_stage import HttpStage
from .rate import Rate

Handler = Callable[..., Any]
"""``async def`` or ``def``: takes a ``Task``, and a connection or session if it asks for one; returns JSON."""

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a pipeline, with one narrow responsibility.

    ``after`` are the stages that must be done before, none for a first stage. ``retries`` further attempts follow a
    failed one, then the stage is a dead letter. ``timeout`` bounds one attempt. ``concurrency`` is how many attempts
    one worker process runs at once; ``rate`` and ``max_running`` bound how many begin, and run at once, over all of its
    processes. ``transaction`` is the type of connection that the handler asks for: it is
    the transaction in which the outcome commits, so what the handler writes there commits or vanishes with it.
    ``priorities`` is the pipeline's.
    """

    pipeline: str
    name: str
    handler: Handler | HttpStage | CommandStage
    after: tuple[str, ...]
    retries: int
    timeout: timedelta
    concurrency: int
    transaction: type[AsyncConnection] | type[AsyncSession] | None
    rate: Rate | None = None
    max_running: int | None = None
    hands_over: timedelta | None = None
    """How long the service has to report how the work ended, if it does so later."""
    priorities: bool = False

    @property
    def full_name(self) -> str:
        """``<pipeline>.<stage>``, as the command and Redis' keys spell it."""
        return f"{self.pipeline}.{self.name}"

    @property
    def is_async(self) -> bool:
        """False if the handler is a plain function, which then runs in a thread."""
        return _is_async(self.handler)


class Pipeline:
    """A named graph of stages.

    ::

        provisioning = Pipeline("provisioning")

        @provisioning.stage()
        async def validate(task: Task) -> dict: ...

        @provisioning.stage(after="validate", retries=8, timeout=30)
        async def allocate(task: Task, connection: AsyncConnection) -> dict: ...

    Names are lower-case letters, digits, ``_`` and ``-``, beginning with a letter, 63 at most.

    ``schema`` is the JSON Schema that payloads must meet at the HTTP door; by default that of the type ``Order`` if the
    first stages take ``Task[Order]``, and else none.

    With ``priorities`` a task may be submitted as ``high`` or ``low``: its stages take the more urgent ones first, and
    the others at least now and then. Raises ``DeclarationError``.
    """

    def __init__(self, name: str, *, priorities: bool = False, schema: Mapping[str, Any] | None = None) -> None:
        self.name = _checked_name("pipeline", name)
        if not isinstance(priorities, bool):
            raise DeclarationError(f"pipeline {name!r}: priorities is True or False, not {priorities!r}")
        self.priorities = priorities
        self._schema = schema
        if schema is not None:
            if not isinstance(schema, Mapping):
                raise DeclarationError(f"pipeline {name!r}: schema is a JSON Schema as a dict, not {schema!r}")
            _check_schema(self.name, schema)
        self._stages: dict[str, Stage] = {}

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}: {', '.join(self._stages) or 'no stages'}>"

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON Schema of its payloads, given or read off the type hints of its first stages; ``None``: any JSON."""
        if self._schema is not None:
            return self._schema
        hinted = [
            schema
            for stage in self._stages.values()
            if not stage.after and (schema := _schema_hinted_by(stage)) is not None
        ]
        distinct = [schema for place, schema in enumerate(hinted) if schema not in hinted[:place]]
        if len(distinct) > 1:
            raise DeclarationError(
                f"pipeline {self.name!r}: its first stages take different payloads; say what they may be by schema=…"
            )
        return distinct[0] if distinct else None

    def stage(
        self,
        name: str | None = None,
        *,
        after: str | Iterable[str] = (),
        retries: int = 5,
        timeout: timedelta | float = 30,
        concurrency: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
        max_running: int | None = None,
    ) -> Callable[[Handler], Handler]:
        """Declare the decorated function as the handler of a stage, named like the function unless ``name`` is given.

        ``timeout`` is a ``timedelta`` or seconds. ``concurrency`` is 100 by default, 16 for a handler that runs in
        a thread or holds a connection of its own. ``rate`` is how many attempts may begin in a time, over all processes
        of the stage, as ``200/s``, ``30/m``, ``1000/h`` or ``10/d``; ``burst`` is how many at once after a rest, by
        default a tenth of a second's worth. ``max_running`` is how many may run at once, over all processes.
        ``postroad stage set`` changes these while it works. Raises ``DeclarationError``.
        """
        if callable(name):
            function = getattr(name, "__name__", name)
            raise DeclarationError(
                f"pipeline {self.name!r}: write @pipeline.stage() with parentheses above {function!r}"
            )

        def declare(handler: Handler) -> Handler:
            stage = name if name is not None else getattr(handler, "__name__", "")
            self.add(
                stage, handler, after=after, retries=retries, timeout=timeout, concurrency=concurrency,
                rate=rate, burst=burst, max_running=max_running,
            )  # fmt: skip
            return handler

        return declare

    def add(
        self,
        name: str,
        handler: Handler | HttpStage | CommandStage,
        *,
        after: str | Iterable[str] = (),
        retries: int = 5,
        timeout: timedelta | float = 30,
        concurrency: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
        max_running: int | None = None,
    ) -> None:
        """Declare ``handler`` as that of the stage ``name``: an ``HttpStage``, a ``CommandStage`` or a function.

        The rest is as for ``stage``. ``concurrency`` is 100 by default for a service and 4 for a program. Raises
        ``DeclarationError``.
        """
        _checked_name(f"stage of pipeline {self.name!r}", name)
        full_name = f"{self.name}.{name}"
        if name in self._stages:
            raise DeclarationError(f"stage {full_name!r} is declared twice; give one of them another name")
        predecessors = tuple(after) if isinstance(after, Iterable) and not isinstance(after, str) else (after,)
        if not all(isinstance(predecessor, str) for predecessor in predecessors):
            raise DeclarationError(f"stage {full_name!r}: after must be the name of a stage or several, not {after!r}")
        if len(set(predecessors)) < len(predecessors):
            raise DeclarationError(f"stage {full_name!r} names a stage twice in after={predecessors!r}")
        limit = _duration(timeout)
        if limit is None or limit <= timedelta():
            raise DeclarationError(
                f"stage {full_name!r}: timeout must be a timedelta or seconds, more than 0, not {timeout!r}"
            )
        if not _is_count(retries, least=0):
            raise DeclarationError(f"stage {full_name!r}: retries must be 0 or more, not {retries!r}")
        transaction = _transaction_asked_for(full_name, handler)
        at_once = concurrency
        if at_once is None:
            at_once = _default_concurrency(handler, transaction)
        if not _is_count(at_once, least=1):
            raise DeclarationError(f"stage {full_name!r}: concurrency must be 1 or more, not {concurrency!r}")
        if max_running is not None and not _is_count(max_running, least=1):
            raise DeclarationError(f"stage {full_name!r}: max_running must be 1 or more, not {max_running!r}")
        if rate is None and burst is not None:
            raise DeclarationError(f"stage {full_name!r}: a burst is of a rate, and there is none")
        try:
            limit_per_time = None if rate is None else Rate.parse(rate, burst)
        except DeclarationError as error:
            raise DeclarationError(f"stage {full_name!r}: {error}") from None
        self._stages[name] = Stage(
            pipeline=self.name,
            name=name,
            handler=handler,
            after=predecessors,
            retries=retries,
            timeout=limit,
            concurrency=at_once,
            transaction=transaction,
            rate=limit_per_time,
            max_running=max_running,
            hands_over=handler.hands_over if isinstance(handler, HttpStage) else None,
            priorities=self.priorities,
        )

    def graph(self) -> Mapping[str, Stage]:
        """The stages by name, each after those that it waits for.

        Raises ``DeclarationError`` if a stage waits for an unknown one, if stages wait for each other in a circle,
        or if there is no stage at all.
        """
        if not self._stages:
            raise DeclarationError(f"pipeline {self.name!r} has no stage; declare one with @pipeline.stage()")
        for stage in self._stages.values():
            for name in stage.after:
                if name not in self._stages:
                    known = ", ".join(repr(known) for known in self._stages)
                    raise DeclarationError(
                        f"stage {stage.full_name!r} waits for {name!r}, which is not a stage of"
                        f" {self.name!r}; its stages are {known}"
                    )
        try:
            order = tuple(TopologicalSorter({s.name: s.after for s in self._stages.values()}).static_order())
        except CycleError as error:
            circle = " -> ".join(reversed(error.args[1]))
            first = "" if any(not s.after for s in self._stages.values()) else " and it has no first stage"
            raise DeclarationError(f"stages of pipeline {self.name!r} wait for each other: {circle}{first}") from error
        return {name: self._stages[name] for name in order}


def _checked_name(what: str, name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DeclarationError(
            f"{name!r} cannot name a {what}: lower-case letters, digits, '_' and '-',"
            " beginning with a letter, 63 at most"
        )
    return name


def _check_schema(pipeline: str, schema: Mapping[str, Any]) -> None:
    from .payload_schema import PayloadSchema  # only who declares a schema waits for its import

    try:
        PayloadSchema(schema)
    except DeclarationError as error:
        raise DeclarationError(f"pipeline {pipeline!r}: {error}") from None


def _schema_hinted_by(stage: Stage) -> Mapping[str, Any] | None:
    if isinstance(stage.handler, HttpStage | CommandStage):
        return None
    hints = [hint for name, hint in get_type_hints(stage.handler).items() if name != "return"]
    if not any(get_args(hint) for hint in hints):
        return None
    from .payload_schema import schema_of_hint

    try:
        return schema_of_hint(hints[0])
    except DeclarationError as error:
        raise DeclarationError(f"stage {stage.full_name!r}: {error}") from None


def _is_async(handler: Handler | HttpStage | CommandStage) -> bool:
    return isinstance(handler, HttpStage | CommandStage) or inspect.iscoroutinefunction(handler)


def _default_concurrency(handler: Handler | HttpStage | CommandStage, transaction: object | None) -> int:
    if isinstance(handler, CommandStage):
        return 4
    return 100 if _is_async(handler) and transaction is None else 16


def _duration(value: timedelta | float) -> timedelta | None:
    try:
        return value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (TypeError, ValueError, OverflowError):
        return None


def _is_count(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _transaction_asked_for(
    full_name: str, handler: Handler | HttpStage | CommandStage
) -> type[AsyncConnection] | type[AsyncSession] | None:
    """What the handler's second parameter is annotated with; raises if its signature is not one that we call."""
    if isinstance(handler, HttpStage | CommandStage):
        return None
    if not callable(handler):
        raise DeclarationError(f"stage {full_name!r}: its handler {handler!r} is not a function")
    try:
        hints = get_type_hints(handler)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise DeclarationError(
            f"stage {full_name!r}: an annotation of its handler cannot be read ({error});"
            " name types that can be imported when the module runs"
        ) from error
    parameters = [
        parameter
        for parameter in inspect.signature(handler).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if not parameters or any(p.kind is p.KEYWORD_ONLY for p in parameters) or len(parameters) > 2:
        raise DeclarationError(
            f"stage {full_name!r}: a handler takes the task, and after it a connection if it needs one"
        )
    if len(parameters) == 1:
        return None
    asked = hints.get(parameters[1].name)
    if asked is not AsyncConnection and asked is not AsyncSession:
        raise DeclarationError(
            f"stage {full_name!r}: annotate {parameters[1].name!r} as sqlalchemy.ext.asyncio's AsyncConnection"
            " or AsyncSession to be given the stage's own transaction"
        )
    if not inspect.iscoroutinefunction(handler):
        raise DeclarationError(
            f"stage {full_name!r}: a handler that takes a connection must be 'async def',"
            " since the connection belongs to the event loop"
        )
    return AsyncConnection if asked is AsyncConnection else AsyncSession
