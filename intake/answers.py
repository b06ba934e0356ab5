"""What our rows are as JSON."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

_encoder = msgspec.json.Encoder()


def jsonable(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the database as a JSON object: moments in ISO 8601, UUIDs as text."""
    return {
        name: value.isoformat() if hasattr(value, "isoformat") else str(value) if isinstance(value, UUID) else value
        for name, value in row.items()
    }


def ndjson(answers: list[dict[str, Any]]) -> bytes:
    """``answers`` as NDJSON."""
    return _encoder.encode_lines(answers)
