"""A transaction of an endpoint, whose errors are problems."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

from psycopg.errors import InvalidSchemaName, UndefinedColumn, UndefinedFunction, UndefinedTable
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ..core.database import is_transient
from ..core.errors import NotFoundError, RefusedError, TooSlowError, first_line
from .problems import Problem, unavailable

log = logging.getLogger(__name__)


@asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection whose writes commit at the end. Raises what ``as_problem`` makes of an error."""
    try:
        async with engine.begin() as connection:
            yield connection
    except Exception as error:
        raise as_problem(error) from error


def as_problem(error: Exception) -> Exception:
    """``error`` as the problem that a client can act upon; a fault of ours stays what it is."""
    if isinstance(error, NotFoundError):
        return Problem(HTTPStatus.NOT_FOUND, "not-found", str(error))
    if isinstance(error, RefusedError):
        return Problem(HTTPStatus.CONFLICT, "refused", str(error))
    if isinstance(error, TooSlowError):
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "too-slow", str(error), headers={"Retry-After": "10"})
    if isinstance(error, Problem) or not is_unavailable(error):
        return error
    log.warning("Postgres is not available: %s", first_line(error))
    return unavailable("Postgres")


def is_unavailable(error: BaseException) -> bool:
    """True if Postgres is away, or has not been migrated: a later try may succeed."""
    is_unmigrated = isinstance(error, DBAPIError) and isinstance(
        error.orig, InvalidSchemaName | UndefinedColumn | UndefinedFunction | UndefinedTable
    )
    return is_unmigrated or is_transient(error)
