"""postroad: a task pipeline on Postgres and Redis Streams. The names that authors of pipelines need.

>>> from postroad import Pipeline, Reject, Task

Each is imported when it is first asked for: the command must not load a database driver to print its help.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core.command_stage import CommandStage
    from .core.errors import PostroadError
    from .core.event import Event, EventType
    from .core.http_stage import HttpStage
    from .core.outcome import Reject, Retry, Snooze
    from .core.pipeline import Pipeline, Stage
    from .core.settings import Settings
    from .core.task import Status, Task
    from .outbox.append import append
    from .outbox.submit import submit, submit_many
else:
    import importlib

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name], __name__), name)
        return value


__all__ = [
    "CommandStage",
    "Event",
    "EventType",
    "HttpStage",
    "Pipeline",
    "PostroadError",
    "Reject",
    "Retry",
    "Settings",
    "Snooze",
    "Stage",
    "Status",
    "Task",
    "append",
    "submit",
    "submit_many",
]

_HOMES = {
    "CommandStage": ".core.command_stage",
    "Event": ".core.event",
    "EventType": ".core.event",
    "HttpStage": ".core.http_stage",
    "Pipeline": ".core.pipeline",
    "PostroadError": ".core.errors",
    "Reject": ".core.outcome",
    "Retry": ".core.outcome",
    "Settings": ".core.settings",
    "Snooze": ".core.outcome",
    "Stage": ".core.pipeline",
    "Status": ".core.task",
    "Task": ".core.task",
    "append": ".outbox.append",
    "submit": ".outbox.submit",
    "submit_many": ".outbox.submit",
}
