"""Deployments of real processes, and the servers that they may do harm to."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from postroad.core.servers import Postgres, Valkey
from postroad.core.settings import Settings
from postroad.migrations import upgrade
from tests.acceptance.deployed import deployed
from tests.acceptance.deployment import Deployment


@pytest.fixture
def deployment(settings: Settings, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment on the shared servers; nothing runs yet."""
    with deployed(settings, tmp_path) as deployment:
        yield deployment


@pytest.fixture
def fragile(own_postgres: Postgres, own_valkey: Valkey, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment on servers of its own, which the test may kill; nothing runs yet."""
    upgrade(own_postgres.url)
    with deployed(Settings(database_url=own_postgres.url, redis_url=own_valkey.url), tmp_path) as deployment:
        yield deployment


@pytest.fixture
def forgetful(settings: Settings, own_valkey: Valkey, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment with a Valkey of its own, which the test may wipe; nothing runs yet."""
    with deployed(replace(settings, redis_url=own_valkey.url), tmp_path) as deployment:
        yield deployment
