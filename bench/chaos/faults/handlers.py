"""Faults of handlers: each is a task that does harm, beside the others. The fault lasts until that task has its end."""

import contextlib
import random
from typing import Any

import psycopg

from ..scene import Missed, Scene, fault


def _misbehave(scene: Scene, **payload: Any) -> None:
    task_id = scene.load.submit_harmful({"grams": 1, "seconds": 0.1, "fails": 0} | payload)

    def is_over() -> bool:
        scene.hold(0.1)
        try:
            return bool(
                scene.query(
                    "select from postroad.task where task_id = %s and status not in ('pending', 'in_progress')", task_id
                )
            )
        except psycopg.Error:
            return False

    with contextlib.suppress(Missed):  # Then it is open still, so that the deployment does not heal: that is reported.
        scene.until(is_over, f"{payload} comes to its end", seconds=scene.limit)


@fault("handler", "kills")
def kill_process(scene: Scene, draw: random.Random) -> None:
    """a task that kills each process that runs it, until it is a dead letter"""
    _misbehave(scene, do="die", at=draw.choice(("weigh", "sort", "label")))


@fault("handler", "blocks")
def block_loop(scene: Scene, draw: random.Random) -> None:
    """a handler that blocks its event loop for one and a half leases"""
    _misbehave(scene, do="block", at=draw.choice(("weigh", "sort")), blocked=scene.lease * 1.5)


@fault("handler", "hangs")
def hang(scene: Scene, draw: random.Random) -> None:
    """a handler that never returns: it is timed out after 5 s and tried again"""
    _misbehave(scene, do="hang", at=draw.choice(("weigh", "sort", "label")))
