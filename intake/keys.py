"""Keys of the HTTP door: make, list and revoke them.

A key is ``prk_<key id>_<secret>``. The id is no secret: it finds the row, and may stand in logs. Of the secret only its
SHA-256 is kept. It has 192 random bits, so a slow hash, as passwords need it, would protect nothing more, and would
cost every request what it costs an attacker.
"""

import hashlib
import re
import secrets
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import bindparam, func, insert, select, text, update
from sqlalchemy.dialects.postgresql import INTERVAL
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import api_key_table
from ..core.errors import DeclarationError, NotFoundError
from ..core.moment import rfc3339
from ..core.rate import MOST, Rate
from ..outbox.operation import record

SCOPES = ("submit", "read", "operate")
"""What a key can be good for: submit tasks; look at them; cancel, retry, pause, and resolve dead letters."""

LONGEST = timedelta(days=36500)
"""How long a key that expires may last."""

_KEY = re.compile(r"prk_([0-9a-f]{12})_([0-9a-f]{48})")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,63}", re.ASCII)


def parse(key: str) -> tuple[str, bytes] | None:
    """The id of ``key`` and the digest of its secret; ``None`` if it does not look like one."""
    match = _KEY.fullmatch(key)
    return (match[1], digest(match[2])) if match else None


def digest(secret: str) -> bytes:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def rate_of(rate: str, burst: int | None) -> Rate:
    """The rate of a key. Without a burst all that it may in its time may come at once: 100 for ``100/s``.

    A stage's burst is much smaller: what it guards is hurt by many at once, while a batch comes at once. Raises
    ``DeclarationError``.
    """
    parsed = Rate.parse(rate, burst)
    if burst is not None:
        return parsed
    return Rate(parsed.per_second, min(int(MOST), max(1, int(float(rate.partition("/")[0])))))


async def create(
    connection: AsyncConnection,
    name: str,
    scopes: Collection[str],
    *,
    by: str,
    reason: str | None = None,
    pipelines: Collection[str] = (),
    rate: str | None = None,
    burst: int | None = None,
    expires: timedelta | None = None,
) -> tuple[str, dict[str, Any]]:
    """Make a key in the caller's transaction; returns the key, which nobody can find out later, and its row.

    ``pipelines`` are those that it is good for, none: all. Several keys may have one name, so that one can follow
    another. Raises ``DeclarationError`` for a value that will not do.
    """
    if not _NAME.fullmatch(name):
        raise DeclarationError(f"{name!r}: the name of a key is 1 to 63 letters, digits, '_', '.' and '-'")
    if unknown := sorted({*scopes} - {*SCOPES}):
        raise DeclarationError(f"there is no scope {unknown[0]!r}; there are {', '.join(SCOPES)}")
    if not scopes:
        raise DeclarationError(f"a key needs a scope, one or more of {', '.join(SCOPES)}")
    if any(not pipeline or "\x00" in pipeline for pipeline in pipelines):
        raise DeclarationError("the name of a pipeline is not empty")
    if rate is not None:
        rate_of(rate, burst)
    elif burst is not None:
        raise DeclarationError("a burst belongs to a rate: give both")
    if expires is not None and not timedelta() < expires <= LONGEST:
        raise DeclarationError(f"a key expires after {LONGEST.days:,} days at most, and not at once")
    key_id, secret = secrets.token_hex(6), secrets.token_hex(24)
    values = {
        "key_id": key_id,
        "digest": digest(secret),
        "name": name,
        "scopes": [scope for scope in SCOPES if scope in scopes],
        "pipelines": sorted(set(pipelines)) or None,
        "rate": rate,
        "burst": burst,
        "created_at": func.now(),
        "created_by": by,
        "expires_at": None if expires is None else func.now() + bindparam("expires", expires, INTERVAL),
    }
    row = (await connection.execute(insert(api_key_table).values(values).returning(*_SHOWN))).one()
    said = {"name": name, "scopes": row.scopes, "pipelines": row.pipelines, "rate": rate, "burst": burst}
    end = None if row.expires_at is None else rfc3339(row.expires_at)
    await record(connection, "create key", key_id, by=by, reason=reason, after=said | {"expires_at": end})
    return f"prk_{key_id}_{secret}", dict(row._mapping)


async def list_keys(connection: AsyncConnection) -> Sequence[dict[str, Any]]:
    """All keys there ever were, the newest first: every column but the digest, and ``state``.

    That is ``active``, ``expired`` or ``revoked``.
    """
    column = api_key_table.c
    state = text(
        "case when revoked_at is not null then 'revoked'"
        " when expires_at <= clock_timestamp() then 'expired' else 'active' end as state"
    )
    query = select(*_SHOWN, state).order_by(column.created_at.desc(), column.key_id)
    return [dict(row._mapping) for row in await connection.execute(query)]


async def are_any(connection: AsyncConnection) -> bool:
    """True if a key was ever made: then keys are required. One that was revoked counts too."""
    return (await connection.execute(select(api_key_table.c.key_id).limit(1))).one_or_none() is not None


async def revoke(connection: AsyncConnection, key_id: str, *, by: str, reason: str | None = None) -> bool:
    """Revoke a key in the caller's transaction; returns whether it was not revoked before. Raises ``NotFoundError``.

    The processes of the intake hear of it within two seconds or so.
    """
    is_it = api_key_table.c.key_id == key_id
    done = await connection.execute(
        update(api_key_table)
        .where(is_it, api_key_table.c.revoked_at.is_(None))
        .values(revoked_at=func.now())
        .returning(api_key_table.c.name)
    )
    if (name := done.scalar_one_or_none()) is not None:
        known = {"name": name, "revoked": False}
        await record(
            connection, "revoke key", key_id, by=by, reason=reason, before=known, after=known | {"revoked": True}
        )
        return True
    if (await connection.execute(select(api_key_table.c.key_id).where(is_it))).one_or_none() is None:
        raise NotFoundError(f"there is no key {key_id!r}; postroad key list shows them")
    return False


_SHOWN = [column for column in api_key_table.c if column.name != "digest"]
