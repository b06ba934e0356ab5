"""Deployments of real processes, and the servers that they may do harm to."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from postroad.core.servers import Postgres, Valkey
from postroad.core.settings import Settings
from postroad.migrations import upgrade
from tests.acceptance.app import EFFECT_TABLE
from tests.acceptance.deployment import Deployment, tails

LEASE = timedelta(seconds=2)
"""Short, so that what died is missed soon."""


@pytest.fixture
def deployment(settings: Settings, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment on the shared servers; nothing runs yet."""
    yield from _deployed(settings, tmp_path)


@pytest.fixture
def fragile(own_postgres: Postgres, own_valkey: Valkey, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment on servers of its own, which the test may kill; nothing runs yet."""
    upgrade(own_postgres.url)
    yield from _deployed(Settings(database_url=own_postgres.url, redis_url=own_valkey.url), tmp_path)


@pytest.fixture
def forgetful(settings: Settings, own_valkey: Valkey, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment with a Valkey of its own, which the test may wipe; nothing runs yet."""
    yield from _deployed(replace(settings, redis_url=own_valkey.url), tmp_path)


def _deployed(settings: Settings, folder: Path) -> Iterator[Deployment]:
    settings = replace(settings, app="tests.acceptance.app", lease=LEASE, port=0)
    deployment = Deployment(settings, folder)
    deployment.execute(EFFECT_TABLE)
    try:
        yield deployment
    finally:
        deployment.close()
        sys.stderr.write(tails(deployment.processes.values()))
