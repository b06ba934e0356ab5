"""A client of the intake that keeps to the rules."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx2


@dataclass
class Client:
    """Submits one task of ``road`` after the other, each until it is accepted."""

    url: str
    filling: int = 0
    """How many characters each task holds besides."""
    accepted: dict[str, str] = field(default_factory=dict)
    """The id of each task that was answered with 202, by its key."""
    refusals: list[httpx2.Response] = field(default_factory=list)
    """All other answers."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        with httpx2.Client(timeout=30, trust_env=False) as client:
            while True:
                key = f"client-{number}"
                answer = client.post(
                    f"{self.url}/v1/tasks",
                    json={"pipeline": "road", "payload": {"length": number, "filling": "x" * self.filling}},
                    headers={"Idempotency-Key": key},
                )
                if answer.status_code == 202:
                    self.accepted[key] = answer.json()["task_id"]
                    number += 1
                    # Only now: what was refused may be committed all the same, and would be nobody's.
                    if self._stop.is_set():
                        return
                else:
                    self.refusals.append(answer)
                self._stop.wait(0.05)

    def stop(self) -> None:
        """Let the last task be the one that is being submitted; returns when it was accepted."""
        self._stop.set()
        self._thread.join()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Submit for the length of the block."""
        self._thread.start()
        try:
            yield
        finally:
            self.stop()
