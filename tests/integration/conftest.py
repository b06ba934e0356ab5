"""A road, and a door to it, in the test's own database."""

from collections.abc import AsyncIterator

import pytest

from postroad import Settings
from tests.integration.door import Door, open_door
from tests.integration.road import TRAVEL, Road, open_road


@pytest.fixture
async def road(settings: Settings) -> AsyncIterator[Road]:
    """A road with the pipeline ``travel``."""
    async with open_road(settings, TRAVEL) as opened:
        yield opened


@pytest.fixture
async def door(settings: Settings, road: Road) -> AsyncIterator[Door]:
    """The intake to ``road``; nothing else runs."""
    async with open_door(settings) as client:
        yield Door(client, road)
