"""What ends a server: the one who watches whether we live, and the one who kills all of its processes."""

import contextlib
import os
import signal
import subprocess
import time
from typing import Any

ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C"}
"""Nothing of ours is passed on, so that no PGPORT or PGDATA of the user's shell changes what is started."""

POLL = 0.01
"""Seconds between two looks."""


def watch(pid: int, stop_signal: signal.Signals) -> subprocess.Popen[bytes]:
    """Start what sends ``stop_signal`` to ``pid`` when we are gone: the end of our pipe ends its ``read``.

    Kill it when ``pid`` has ended.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", f"read -r _; kill -{stop_signal:d} {pid}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=ENVIRONMENT,
        start_new_session=True,
    )


def kill_family(pid: int) -> None:
    """Postgres puts each backend into a process group of its own, so they are found by parentage."""
    import psutil  # comes with the servers; this module has to load without them

    def lives(process: Any) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return bool(process.status() != psutil.STATUS_ZOMBIE)  # a zombie holds neither memory nor port
        return False

    parent = psutil.Process(pid)
    family = [*parent.children(recursive=True), parent]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    while any(lives(process) for process in family):
        time.sleep(POLL)
