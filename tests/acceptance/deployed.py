"""A deployment with the pipelines of the acceptance tests, for as long as a test needs it."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from postroad.core.settings import Settings
from tests.acceptance.app import EFFECT_TABLE
from tests.acceptance.deployment import Deployment, tails

LEASE = timedelta(seconds=2)
"""Short, so that what died is missed soon."""


@contextlib.contextmanager
def deployed(settings: Settings, folder: Path, *, lease: timedelta = LEASE) -> Iterator[Deployment]:
    """A deployment on a database with our tables; nothing runs yet, and at the end nothing runs any more."""
    deployment = Deployment(replace(settings, app="tests.acceptance.app", lease=lease, port=0), folder)
    if deployment.query("select to_regclass('effect')") == [(None,)]:
        deployment.execute(EFFECT_TABLE)
    try:
        yield deployment
    finally:
        deployment.close()
        sys.stderr.write(tails(deployment.processes.values()))
