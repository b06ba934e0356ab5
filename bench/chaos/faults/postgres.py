"""Faults of Postgres, and the burden that it carries from the beginning to the end of a run."""

import contextlib
import os
import random
import signal
import threading
from typing import Any

import psutil
import psycopg

from ..scene import Scene, fault

OPTIONS = {"max_prepared_transactions": "5"}
"""What the server must be started with."""

HELD = 3.0
"""Seconds for which the table is locked, or the server does not move."""


@fault("postgres", "terminate")
def terminate(scene: Scene, draw: random.Random) -> None:
    """pg_terminate_backend of all sessions"""
    scene.query(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where backend_type = 'client backend' and pid <> pg_backend_pid()"
    )


@fault("postgres", "cancel")
def cancel(scene: Scene, draw: random.Random) -> None:
    """pg_cancel_backend of whatever all sessions run, ten times within a second"""
    for _ in range(10):
        scene.query(
            "select pg_cancel_backend(pid) from pg_stat_activity"
            " where backend_type = 'client backend' and state = 'active' and pid <> pg_backend_pid()"
        )
        scene.hold(0.1)


@fault("postgres", "restart")
def restart(scene: Scene, draw: random.Random) -> None:
    """a fast shutdown, and a restart"""
    scene.postgres.stop()
    scene.postgres.start()


@fault("postgres", "kill")
def kill(scene: Scene, draw: random.Random) -> None:
    """kill -9 of Postgres with all its children, and a restart with recovery"""
    scene.postgres.kill()
    scene.postgres.start()


@fault("postgres", "kill-backend")
def kill_backend(scene: Scene, draw: random.Random) -> None:
    """kill -9 of one backend, for which Postgres ends all sessions and recovers"""
    sessions = scene.query("select pid from pg_stat_activity where application_name like 'postroad%'")
    (pid,) = draw.choice(sessions)
    os.kill(pid, signal.SIGKILL)

    def is_back() -> bool:
        with contextlib.suppress(psycopg.Error):
            return bool(scene.query("select from pg_stat_activity where pid = pg_backend_pid()"))
        return False

    scene.until(is_back, "Postgres has recovered", seconds=60)


@fault("postgres", "pause")
def pause(scene: Scene, draw: random.Random) -> None:
    """SIGSTOP of Postgres with all its children, for 3 s"""
    postmaster = psutil.Process(scene.postgres.pid)
    family = [postmaster, *postmaster.children(recursive=True)]
    _signal(family, signal.SIGSTOP)
    try:
        scene.hold(HELD)
    finally:
        _signal(family, signal.SIGCONT)


@fault("postgres", "lock")
def lock(scene: Scene, draw: random.Random) -> None:
    """an exclusive lock on postroad.task, for 3 s"""
    with psycopg.connect(scene.deployment.settings.database_url) as connection:
        connection.execute("lock table postroad.task in access exclusive mode")
        scene.hold(HELD)


def _signal(family: list[Any], number: signal.Signals) -> None:
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


class Burden:
    """A transaction that stays open and idle, made anew when its session is lost; and one that stays prepared.

    Both have an id and a snapshot, so that nothing after them can be vacuumed, and every snapshot lists them.
    """

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("create table burden (number int)")
            connection.execute("begin isolation level repeatable read")
            connection.execute("insert into burden values (1)")
            connection.execute("prepare transaction 'burden'")
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        with contextlib.suppress(psycopg.Error), psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("rollback prepared 'burden'")

    def _run(self) -> None:
        while not self._ending.wait(0.5):
            with contextlib.suppress(psycopg.Error), psycopg.connect(self._url, connect_timeout=5) as connection:
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                connection.execute("insert into burden values (2)")
                # Idle, but for a word now and then by which a lost session is noticed.
                while not self._ending.wait(1):
                    connection.execute("select 1")
                connection.rollback()
