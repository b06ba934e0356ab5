"""Pause a stage and resume it, without a restart."""

from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import Statements
from ..core.errors import NotFoundError
from ..outbox.operation import record


async def set_paused(
    connection: AsyncConnection,
    pipeline: str,
    stage: str,
    schema: str,
    *,
    paused: bool,
    by: str,
    on_behalf_of: str | None = None,
    reason: str | None = None,
) -> bool:
    """Pause or resume a stage, in the caller's transaction; returns whether that changed anything.

    ``by`` says who asks, ``on_behalf_of`` for whom, and ``reason`` why: a change is recorded as an operation, and who
    made it stands in the stage's row too.

    Its workers hear of it within a second: they then read nothing more, and what they run comes to its end. Entries
    wait in the stream meanwhile. Raises ``NotFoundError``.
    """
    statement = Statements(__package__ or "", schema)["pause"]
    parameters = {"pipeline": pipeline, "stage": stage, "paused": paused}
    parameters["by"] = f"{by} for {on_behalf_of}" if on_behalf_of else by
    was_paused = (await connection.exec_driver_sql(statement, parameters)).scalar_one_or_none()
    if was_paused is None:
        raise NotFoundError(f"there is no stage {pipeline}.{stage}")
    if bool(was_paused) is paused:
        return False
    await record(
        connection, "pause" if paused else "resume", f"{pipeline}.{stage}", pipeline=pipeline,
        by=by, on_behalf_of=on_behalf_of, reason=reason, before={"paused": was_paused}, after={"paused": paused},
    )  # fmt: skip
    return True
