"""postroad: a task pipeline on Postgres and Redis Streams. The names that authors of pipelines need.

>>> from postroad import Pipeline, Reject, Task
"""

from .core.errors import PostroadError
from .core.event import Event, EventType
from .core.outcome import Reject, Retry, Snooze
from .core.pipeline import Pipeline, Stage
from .core.settings import Settings
from .core.task import Status, Task
from .outbox.append import append

__all__ = [
    "Event",
    "EventType",
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
]
