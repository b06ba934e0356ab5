"""Faults of our own processes. Whatever has ended is started again by the supervisor, like under systemd."""

import random
import signal

from tests.acceptance.deployment import Process

from ..scene import Scene, fault


def _pause(scene: Scene, process: Process, seconds: float) -> None:
    process.pause()
    try:
        scene.hold(seconds)
    finally:
        process.resume()


def _terminate(scene: Scene, process: Process) -> None:
    pid = process.pid
    process.send(signal.SIGTERM)
    scene.until(lambda: process.pid != pid or process.code is not None, f"{process.name} ends", seconds=40)


@fault("worker", "kill")
def kill_worker(scene: Scene, draw: random.Random) -> None:
    """kill -9 of a worker"""
    draw.choice(scene.workers()).send(signal.SIGKILL)


@fault("worker", "pause")
def pause_worker(scene: Scene, draw: random.Random) -> None:
    """SIGSTOP of a worker for one and a half leases: others take its entries, then it commits what it had"""
    _pause(scene, draw.choice(scene.workers()), scene.lease * 1.5)


@fault("worker", "term")
def terminate_worker(scene: Scene, draw: random.Random) -> None:
    """SIGTERM of a busy worker"""
    _terminate(scene, draw.choice(scene.workers()))


@fault("worker", "kill-all")
def kill_workers(scene: Scene, draw: random.Random) -> None:
    """kill -9 of all workers at once"""
    for worker in scene.workers():
        worker.send(signal.SIGKILL)


@fault("relay", "kill")
def kill_relay(scene: Scene, draw: random.Random) -> None:
    """kill -9 of the relay that works"""
    scene.leader().send(signal.SIGKILL)


@fault("relay", "pause")
def pause_relay(scene: Scene, draw: random.Random) -> None:
    """SIGSTOP of the relay that works, for 2 s up to a lease and 8 s: the other may take over meanwhile"""
    _pause(scene, scene.leader(), draw.uniform(2, scene.lease + 8))


@fault("relay", "kill-both")
def kill_relays(scene: Scene, draw: random.Random) -> None:
    """kill -9 of both relays"""
    for relay in scene.relays():
        relay.send(signal.SIGKILL)


@fault("relay", "term")
def terminate_relay(scene: Scene, draw: random.Random) -> None:
    """SIGTERM of the relay that works"""
    _terminate(scene, scene.leader())


@fault("intake", "kill")
def kill_intake(scene: Scene, draw: random.Random) -> None:
    """kill -9 of the intake; its clients repeat what was not answered"""
    scene.deployment.processes["intake"].send(signal.SIGKILL)


@fault("intake", "term")
def terminate_intake(scene: Scene, draw: random.Random) -> None:
    """SIGTERM of the intake under load"""
    _terminate(scene, scene.deployment.processes["intake"])
