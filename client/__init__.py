"""A client of the HTTP door: submit tasks, wait for them, follow them, step in.

>>> from postroad.client import AsyncClient, Client

Needs neither Postgres nor Redis, and imports none of their drivers.
"""

from ..core.errors import (
    AccessError,
    IntakeError,
    InvalidRequestError,
    TaskStateError,
    UnansweredError,
    UnknownTaskError,
)
from .async_client import AsyncClient
from .client import Client
from .new_task import NewTask
from .refusal import Refused
from .views import StageRunView, Submitted, TaskEvent, TaskView

__all__ = [
    "AccessError",
    "AsyncClient",
    "Client",
    "IntakeError",
    "InvalidRequestError",
    "NewTask",
    "Refused",
    "StageRunView",
    "Submitted",
    "TaskEvent",
    "TaskStateError",
    "TaskView",
    "UnansweredError",
    "UnknownTaskError",
]
