"""The polyglot example: its stages keep to the contract, and do each effect once while they are killed."""

import base64
import contextlib
import json
import os
import random
import shutil
import socket
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from postroad.core.settings import Settings
from tests.acceptance.deployed import LEASE
from tests.acceptance.deployment import ROOT, Deployment, Process, tails, wait_until

EXAMPLE = ROOT / "examples/polyglot"
STAGES = ("price", "label", "book")
CENTS = {"tea": 450, "coffee": 620}
ROUNDS = 3
WAVE = 70
"""Orders that come in before each round of strikes."""

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("flock") is None,
    reason="the polyglot example needs node and flock; CI installs them",
)


@dataclass(frozen=True, slots=True)
class Shop:
    """The example's services as processes, and what they have recorded."""

    folder: Path
    services: dict[str, Process]

    def keys(self, stage: str) -> list[str]:
        """The key of each effect that ``stage`` has recorded, in order."""
        match stage:
            case "price":
                return [json.loads(line)["key"] for line in self._lines("prices")]
            case "label":
                return [line.split()[0] for line in self._lines("labels")]
            case _:
                return [key for key, _ in self.bookings()]

    def bookings(self) -> list[tuple[str, int]]:
        """Key and cents of each booking."""
        return self._rows("select key, cents from booking order by number")

    def till(self) -> int:
        """The cents in the till."""
        return int(self._rows("select cents, 0 from till")[0][0])

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def _rows(self, statement: str) -> list[tuple[str, int]]:
        database = sqlite3.connect(self.folder / "bookings", timeout=30)
        try:
            return database.execute(statement).fetchall()
        finally:
            database.close()


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Shop]:
    """The services, listening; what they record is in files of the test."""
    ports = {"price": free_port(), "book": free_port()}
    monkeypatch.setenv("ORDERS_SECRET", f"whsec_{base64.b64encode(os.urandom(32)).decode()}")
    for name, file in (("PRICE", "prices"), ("LABEL", "labels"), ("BOOK", "bookings")):
        monkeypatch.setenv(f"{name}_FILE", str(tmp_path / file))
    for name, port in ports.items():
        monkeypatch.setenv(f"{name.upper()}_PORT", str(port))
        monkeypatch.setenv(f"{name.upper()}_URL", f"http://127.0.0.1:{port}/")
    programs = {"price": ("node", "price.js"), "book": (sys.executable, "book.py")}
    services = {
        name: Process(name, (), dict(os.environ), tmp_path, EXAMPLE, program=program)
        for name, program in programs.items()
    }
    for service in services.values():
        service.start()
    for name, port in ports.items():
        wait_until(partial(answers, port), f"{name} listens")
    try:
        yield Shop(tmp_path, services)
    finally:
        for service in services.values():
            service.kill()
        sys.stderr.write(tails(services.values()))


@pytest.fixture
def orders(settings: Settings, shop: Shop, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment of the example's pipeline; nothing runs yet."""
    deployment = Deployment(replace(settings, app="orders.toml", lease=LEASE, port=0), tmp_path, cwd=EXAMPLE)
    try:
        yield deployment
    finally:
        deployment.close()
        sys.stderr.write(tails(deployment.processes.values()))


def free_port() -> int:
    """A port on which nobody listens, and that nobody is given for a connection while a service is down."""
    while True:
        port = random.randrange(20_000, 32_000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port


def answers(port: int) -> bool:
    """Whether somebody listens."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def test_every_effect_is_done_once_while_the_services_are_killed(shop: Shop, orders: Deployment) -> None:
    orders.start()
    tasks: dict[str, int] = {}
    strikes: Counter[str] = Counter()

    def strike(stage: str, before: int) -> None:
        wait_until(lambda: len(shop.keys(stage)) > before, f"{stage} is at work")
        if stage == "label":
            strikes[stage] += wait_until(lambda: kill_programs(orders.processes["worker"]), "a label", poll=0.01)
        else:
            shop.services[stage].kill()
            strikes[stage] += 1
            shop.services[stage].start()

    for _ in range(ROUNDS):
        before = {stage: len(shop.keys(stage)) for stage in STAGES}
        tasks.update(submit(orders, first=len(tasks)))
        for stage in STAGES:
            strike(stage, before[stage])

    assert orders.wait_until_finished(len(tasks)) == {"completed": len(tasks)}

    assert len(tasks) >= 200
    assert min(strikes[stage] for stage in STAGES) >= ROUNDS
    for stage in STAGES:
        assert Counter(shop.keys(stage)) == {f"{task}/{stage}": 1 for task in tasks}
    booked = {key.partition("/")[0]: cents for key, cents in shop.bookings()}
    assert booked == tasks
    assert shop.till() == sum(tasks.values())
    results = orders.query("select task_id::text, result from postroad.stage_run where stage = 'price'")
    assert dict(results) == {task: {"cents": cents} for task, cents in tasks.items()}
    orders.audit()


def kill_programs(worker: Process) -> int:
    """Kill the labels that are being made with SIGKILL; how many these were."""
    killed = 0
    for one in psutil.Process(worker.pid).children():
        with contextlib.suppress(psutil.Error):  # it has ended
            if "./label.sh" in one.cmdline():
                one.kill()
                killed += 1
    return killed


def submit(orders: Deployment, *, first: int) -> dict[str, int]:
    """Submit a wave of orders; what each of them must cost."""
    payloads = [
        {"item": ("tea", "coffee")[number % 2], "quantity": number + 1} for number in range(first, first + WAVE)
    ]
    ids = orders.submit("orders", *payloads)
    return {
        task: CENTS[str(payload["item"])] * int(payload["quantity"])
        for task, payload in zip(ids, payloads, strict=True)
    }


def test_the_stages_keep_to_the_contract(shop: Shop, tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        runs = list(pool.map(lambda stage: conformance(tmp_path, stage), STAGES))

    for code, checks in runs:
        assert {check["verdict"] for check in checks} == {"ok"}, checks
        assert code == 0
    assert [len(checks) for _, checks in runs] == [12, 5, 12]


def test_one_that_does_not_look_at_signatures_fails(shop: Shop, tmp_path: Path) -> None:
    careless = tmp_path / "careless.py"
    source = (EXAMPLE / "book.py").read_text("utf-8")
    careless.write_text(source.replace("if not is_signed(", "if False and not is_signed("))
    assert careless.read_text() != source
    shop.services["book"].kill()
    process = Process("careless", (), dict(os.environ), tmp_path, EXAMPLE, program=(sys.executable, str(careless)))
    process.start()
    try:
        wait_until(lambda: answers(int(os.environ["BOOK_PORT"])), "it listens")
        code, checks = conformance(tmp_path, "book")
    finally:
        process.kill()

    assert code == 5
    assert {check["case"] for check in checks if check["verdict"] == "failed"} == {
        "no signature",
        "wrong secret",
        "changed body",
        "old timestamp",
    }


def conformance(folder: Path, stage: str) -> tuple[int, list[dict[str, str]]]:
    """``postroad stage test``, as the example's README has it: its exit code, and what it printed."""
    work = ["--payload", '{"item": "tea", "quantity": 2}', "--results", '{"price": {"cents": 900}}']
    ended = Deployment(Settings(app="orders.toml"), folder, cwd=EXAMPLE).run(
        "stage", "test", f"orders.{stage}", *work, "--timeout", "10s", "--json"
    )
    assert ended.out, ended.err
    assert os.environ["ORDERS_SECRET"] not in ended.out + ended.err
    return ended.code, json.loads(ended.out)
