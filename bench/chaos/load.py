"""Clients that submit tasks at a steady rate, and keep to the rules: the same key until there is an answer."""

import random
import threading
import time
from typing import Any

import httpx2

from tests.acceptance.deployment import Deployment

CLIENTS = 4

RATE = 20.0
"""Tasks per second of all clients together, as long as they are answered at once."""

FAILING = 0.05
"""The share of tasks that fail once or twice before they succeed."""

FORGETFUL = 0.03
"""The share of requests that are repeated although they were answered, as after an answer that got lost."""

REPEAT = 0.25
"""Seconds before a request without an answer is repeated."""


class Load:
    """The clients, and what they were told. ``start``, then ``finish`` or ``abandon``."""

    def __init__(self, deployment: Deployment, seed: int) -> None:
        self._url = f"{deployment.url}/v1/tasks"
        self._ending = threading.Event()
        self._abandoned = threading.Event()
        self._seed = seed
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(CLIENTS)]
        self.accepted: dict[str, str] = {}
        """The id of each task that was answered with 202, by its key, oldest first."""
        self.harmful: dict[str, str] = {}
        """What the tasks that do harm do, by their ids."""
        self.repeats = 0
        """Requests that were sent again."""
        self.replays = 0
        """Answers that said so."""
        self.complaints: list[str] = []
        """Answers that no client should get."""

    def start(self) -> None:
        """Let the clients begin."""
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Send nothing new; returns when every request has its answer."""
        self._ending.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def abandon(self) -> None:
        """Give up whatever has no answer yet."""
        self._abandoned.set()
        self.finish()

    def submit_harmful(self, payload: dict[str, Any]) -> str:
        """Submit a task that does harm; its id."""
        with httpx2.Client(timeout=5, trust_env=False) as client:
            task_id = self._submit(client, "harmful", payload)
        if task_id is None:
            raise RuntimeError("the run was ended")
        self.harmful[task_id] = payload["do"]
        return task_id

    def payload(self, draw: random.Random) -> dict[str, Any]:
        """An ordinary task."""
        fails = draw.choice((1, 2)) if draw.random() < FAILING else 0
        return {"grams": draw.randint(20, 5000), "seconds": round(draw.uniform(0, 0.3), 3), "fails": fails}

    def _run(self, number: int) -> None:
        draw = random.Random(f"{self._seed}/{number}")
        due = time.monotonic() + number / RATE
        with httpx2.Client(timeout=5, trust_env=False) as client:
            while not self._ending.wait(max(0.0, due - time.monotonic())):
                # Not faster after a pause: the rate is steady, and an outage is not made up for.
                due = max(due + CLIENTS / RATE, time.monotonic())
                self._submit(client, f"client-{number}", self.payload(draw), twice=draw.random() < FORGETFUL)

    def _submit(self, client: httpx2.Client, name: str, payload: dict[str, Any], *, twice: bool = False) -> str | None:
        """Submit until there is an answer; the id, or ``None`` if the run is abandoned or the task was refused."""
        with self._lock:
            number = self._numbers[name] = self._numbers.get(name, -1) + 1
        key = f"{name}-{number}"
        while True:
            answer = self._post(client, key, payload)
            if answer is not None and answer.status_code == 202:
                task_id = str(answer.json()["task_id"])
                self.replays += answer.headers.get("Idempotent-Replayed") == "true"
                if self.accepted.setdefault(key, task_id) != task_id:
                    self.complaints.append(f"{key} stands for {self.accepted[key]} and for {task_id}")
                if not twice:
                    return task_id
                twice = False
            elif answer is not None and answer.status_code != 503:
                self.complaints.append(f"{key}: {answer.status_code} {answer.text[:300]}")
                if answer.status_code < 500:
                    return None
            self.repeats += 1
            if self._abandoned.wait(REPEAT):
                return None

    def _post(self, client: httpx2.Client, key: str, payload: dict[str, Any]) -> httpx2.Response | None:
        try:
            document = {"pipeline": "parcel", "payload": payload}
            return client.post(self._url, json=document, headers={"Idempotency-Key": key})
        except httpx2.TransportError:
            return None
