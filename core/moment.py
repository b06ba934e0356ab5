"""Moments as text: RFC 3339, always with their offset from UTC."""

import re
from datetime import UTC, datetime

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def parse_rfc3339(text: str) -> datetime:
    """The moment, in UTC, that ``text`` names like ``2026-12-01T10:00:00+01:00``. Raises ``ValueError`` if none."""
    if not _RFC3339.fullmatch(text):
        raise ValueError(f"{text!r} is not of the form 2026-12-01T10:00:00+01:00")
    return in_utc(datetime.fromisoformat(text.upper()))


def in_utc(moment: datetime) -> datetime:
    """The same moment in UTC: Postgres takes no offset beyond 16 hours. Raises ``ValueError`` if no year has it."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{moment.isoformat()} is in no year from 1 to 9999") from None


def rfc3339(moment: datetime) -> str:
    """``moment`` in UTC, to the second, as ``2026-12-01T09:00:00Z``."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
