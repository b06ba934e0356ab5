"""Hear from services how the work ended that was handed to them."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import Statements
from ..core.errors import NotFoundError, RefusedError
from ..core.jsontext import encode
from ..core.outcome import lease_of


async def report(connection: AsyncConnection, token: str, answer: dict[str, Any], schema: str) -> tuple[str, bool]:
    """Keep ``answer`` as the outcome of the work that ``token`` stands for, in the caller's transaction.

    ``answer`` has ``outcome``: ``completed`` (with ``result``), ``failed`` (with ``reason`` and ``after``, in seconds)
    or ``rejected`` (with ``reason``). A worker commits it. Returns ``<task_id>/<stage>``, and whether the same was
    reported before. Raises ``NotFoundError`` if the work is not this token's, any more or at all, and ``RefusedError``
    if something else was reported or the task is over.
    """
    lease, row = await _hold(connection, token, schema)
    name = f"{row.task_id}/{row.stage}"
    if row.outcome is not None:
        if row.outcome != answer["outcome"]:
            raise RefusedError(f"{name}: {row.outcome} was reported before")
        return name, True
    parameters = {"lease": lease, "answer": encode(answer)}
    written = await connection.exec_driver_sql(Statements(__package__ or "", schema)["report"], parameters)
    if written.one_or_none() is None:
        raise _over(row)
    return name, False


async def extend(connection: AsyncConnection, token: str, within: timedelta, schema: str) -> tuple[str, datetime]:
    """Let the service of ``token`` report until ``within`` from now; ``<task_id>/<stage>``, and until when that is.

    Raises as ``report`` does.
    """
    lease, row = await _hold(connection, token, schema)
    parameters = {"lease": lease, "within": within}
    written = await connection.exec_driver_sql(Statements(__package__ or "", schema)["extend"], parameters)
    extended = written.one_or_none()
    if extended is None:
        raise _over(row)
    return f"{row.task_id}/{row.stage}", extended.until


async def _hold(connection: AsyncConnection, token: str, schema: str) -> tuple[bytes, Row[Any]]:
    lease = lease_of(token)
    sql = Statements(__package__ or "", schema)
    await connection.exec_driver_sql(sql["hold_lease"], {"lease": lease})
    row = (await connection.exec_driver_sql(sql["lease"], {"lease": lease})).one_or_none()
    if row is None:
        raise NotFoundError("this lease was never given, or its time was up and the work was handed out anew")
    return lease, row


def _over(row: Row[Any]) -> RefusedError:
    if row.task_status in ("completed", "cancelled"):
        return RefusedError(f"{row.task_id}/{row.stage}: its task is {row.task_status}")
    return RefusedError(f"{row.task_id}/{row.stage}: the lease is lost, and the stage {row.status}")
