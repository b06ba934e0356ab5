"""The schemas that payloads must meet at the door, as they are deployed."""

import asyncio
import time
from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncEngine

from ..core.database import Statements
from ..core.payload_schema import PayloadSchema

NEWS = 2.0
"""Seconds within which the door hears of a schema that was deployed."""


class PayloadSchemas:
    """Those of all pipelines that have one. Asked of Postgres every ``NEWS`` seconds at most, and only when needed."""

    def __init__(self, engine: AsyncEngine, schema: str) -> None:
        self._engine = engine
        self._sql = Statements(__package__ or "", schema)
        self._known: dict[str, tuple[int, PayloadSchema]] = {}
        self._current: Mapping[str, PayloadSchema] = {}
        self._loaded_at = float("-inf")
        self._loading = asyncio.Lock()

    async def current(self) -> Mapping[str, PayloadSchema]:
        """The schemas by their pipelines. Raises what the driver raises when Postgres is away."""
        if time.monotonic() - self._loaded_at > NEWS:
            async with self._loading:
                if time.monotonic() - self._loaded_at > NEWS:
                    await self._load()
        return self._current

    async def _load(self) -> None:
        async with self._engine.connect() as connection:
            rows = (await connection.exec_driver_sql(self._sql["schemas"])).all()
        known = self._known
        self._known = {
            row.pipeline: known[row.pipeline]
            if row.pipeline in known and known[row.pipeline][0] == row.version
            else (row.version, PayloadSchema(row.schema))
            for row in rows
        }
        self._current = {pipeline: schema for pipeline, (_, schema) in self._known.items()}
        self._loaded_at = time.monotonic()
