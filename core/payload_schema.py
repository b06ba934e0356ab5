"""What the payloads of a pipeline may be, as JSON Schema (2020-12): given by the author, or read off a type hint.

Held at the HTTP door. Nothing is fetched: a reference to elsewhere is an error.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, get_args, get_origin

import jsonschema_rs
import msgspec

from .errors import DeclarationError, first_line
from .task import Task


class PayloadSchema:
    """Holds payloads against ``schema``. Raises ``DeclarationError`` if that is no JSON Schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            self._validator = jsonschema_rs.validator_for(dict(schema), offline=True)
        except (jsonschema_rs.ValidationError, ValueError, TypeError) as error:
            raise DeclarationError(f"schema is no JSON Schema that stands alone: {first_line(error)}") from None

    def faults(self, payload: Any, *, most: int) -> Iterator[tuple[str, str]]:
        """What is wrong with ``payload``: JSON pointers with what each should be, at most ``most``."""
        for error in islice(self._validator.iter_errors(payload), most):
            pointer = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in error.instance_path)
            yield pointer, error.message[:300]


def schema_of_hint(hint: Any) -> dict[str, Any] | None:
    """The schema that ``hint``, a handler's annotation of its task, promises: of ``Task[Order]`` that of ``Order``.

    ``None`` for a plain ``Task``. Raises ``DeclarationError`` for what JSON does not come as.
    """
    if get_origin(hint) is not Task:
        return None
    (payload,) = get_args(hint)
    if payload is Any:
        return None
    if isinstance(payload, type) and (dataclasses.is_dataclass(payload) or hasattr(payload, "__struct_fields__")):
        raise DeclarationError(
            f"the payload of Task[{payload.__name__}] comes as a dict, not as a {payload.__name__}: make it a TypedDict"
        )
    try:
        schema = msgspec.json.schema(payload)
    except (TypeError, ValueError) as error:
        raise DeclarationError(f"Task[{payload!r}] has no JSON Schema: {first_line(error)}") from None
    return dict(schema)
