"""Moments as text: RFC 3339, always with their offset from UTC."""

import re
from datetime import UTC, datetime

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def parse_rfc3339(text: str) -> datetime:
    """The moment that ``text`` names, as ``2026-12-01T10:00:00+01:00``. Raises ``ValueError`` if it names none."""
    if not _RFC3339.fullmatch(text):
        raise ValueError(f"{text!r} is not of the form 2026-12-01T10:00:00+01:00")
    return datetime.fromisoformat(text.upper())


def rfc3339(moment: datetime) -> str:
    """``moment`` in UTC, to the second, as ``2026-12-01T09:00:00Z``."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
