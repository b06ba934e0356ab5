"""An endpoint of the door: how it is asked, and what it answers. Routes and OpenAPI document are made of these."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

from .members import Member

Scope = Literal["submit", "read", "operate"]
"""What a caller must be allowed to do."""

Schema = Mapping[str, Any]
"""JSON Schema, as OpenAPI 3.1 has it; ``ref(name)`` names one of ``schemas.SCHEMAS``."""

JSON = "application/json"
NDJSON = "application/x-ndjson"


def ref(name: str) -> Schema:
    """The schema of that name."""
    return {"$ref": f"#/components/schemas/{name}"}


@dataclass(frozen=True, slots=True)
class Body:
    """What a request brings."""

    schema: Schema
    is_required: bool = True
    media_type: str = JSON
    example: Any = None

    @classmethod
    def of(cls, members: Mapping[str, Member], *, example: Any = None, **more: Any) -> "Body":
        """A JSON object of ``members``, each of which may be left out, or be null; and the body with them.

        Unless ``more`` of its schema says which are needed.
        """
        properties = {
            name: {"description": member.description, **_nullable(member.schema)} for name, member in members.items()
        }
        schema = {"type": "object", "properties": properties, "additionalProperties": False, **more}
        return cls(schema, is_required=bool(more), example=example)


def _nullable(schema: Schema) -> Schema:
    kind = schema.get("type")
    return {**schema, "type": [kind, "null"]} if isinstance(kind, str) else schema


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is no error."""

    description: str
    schema: Schema | None = None
    media_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    """What it may carry, and what that says."""
    example: Any = None
    also: Mapping[str, Schema] = field(default_factory=dict)
    """The schemas of other media types, which a caller gets by ``Accept``."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """``method`` of ``path``, answered by ``handle``.

    ``scope`` is what the caller must be allowed to do; ``None``: anybody may ask. ``problems`` are the statuses of its
    errors beside those that any request may be answered with. The first line of ``handle``'s docstring is its summary.
    """

    method: str
    path: str
    handle: Callable[[Request], Awaitable[Response]]
    scope: Scope | None
    replies: Mapping[int, Reply]
    problems: tuple[int, ...] = ()
    query: Mapping[str, Member] = field(default_factory=dict)
    headers: Mapping[str, Member] = field(default_factory=dict)
    body: Body | None = None
    counts_lines: bool = False
    """It says itself how many requests it stands for, to a rate."""

    @property
    def summary(self) -> str:
        """What it does, in a sentence."""
        return (self.handle.__doc__ or "").strip().partition("\n")[0]

    @property
    def name(self) -> str:
        """The name of its handler, which clients that are made of the document take for the name of the call."""
        return self.handle.__name__
