"""The keys of the HTTP door. Who may come without one is another process's affair: its setting ``auth``."""

from collections.abc import Sequence

from .finding import Finding, listed, many, ok, told, warning
from .patient import Patient

SOON = 14 * 86400.0
"""Seconds: time enough to make another key and hand it to whoever uses it."""

UNUSED = 30 * 86400.0
"""Seconds: who wanted a key has used it by then; one that lies about is only a risk."""


async def keys(patient: Patient) -> Sequence[Finding]:
    """Keys that end soon, were never used, or are all gone."""
    rows = await patient.rows("keys")
    if not rows[0].ever:
        return [ok("there are no keys: unless auth is set, the door is open to its own machine alone")]
    good = [row for row in rows if row.key_id is not None and (row.left is None or row.left > 0)]
    if not good:
        return [
            warning(
                "every key is revoked or over: unless auth is off, nobody gets in",
                "postroad key create NAME --scope submit",
            )
        ]
    findings = [
        warning(
            f"the key {row.name!r} ({row.key_id}), which is in use, ends in {told(row.left)}",
            "make another of the same name, and hand it over",
        )
        for row in good
        if row.left is not None and row.left < SOON and row.used is not None
    ]
    unused = [f"{row.name} ({row.key_id})" for row in good if row.used is None and row.created > UNUSED]
    if unused:
        findings.append(
            warning(f"keys that were never used in {told(UNUSED)}: {listed(unused)}", "postroad key revoke ID")
        )
    return findings or [ok(f"{many(len(good), 'good key')}")]
