"""Pause a stage and resume it, without a restart."""

from sqlalchemy.ext.asyncio import AsyncConnection

from ..core.database import Statements
from ..core.errors import NotFoundError


async def set_paused(
    connection: AsyncConnection, pipeline: str, stage: str, schema: str, *, paused: bool, by: str | None = None
) -> bool:
    """Pause or resume a stage, in the caller's transaction; returns whether that changed anything.

    ``by`` says who asks, and stands in the stage's row.

    Its workers hear of it within a second: they then read nothing more, and what they run comes to its end. Entries
    wait in the stream meanwhile. Raises ``NotFoundError``.
    """
    statement = Statements(__package__ or "", schema)["pause"]
    parameters = {"pipeline": pipeline, "stage": stage, "paused": paused, "by": by}
    was_paused = (await connection.exec_driver_sql(statement, parameters)).scalar_one_or_none()
    if was_paused is None:
        raise NotFoundError(f"there is no stage {pipeline}.{stage}")
    return bool(was_paused) is not paused
