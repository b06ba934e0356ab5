"""The queries of docs/sql.md give the answers that they promise, on a road with known traffic."""

import re
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from postroad import Settings
from postroad.core.outcome import Handed, Reject, Retry
from postroad.intake.cancel import cancel
from postroad.intake.dead_letters import Selection, discard, find_dead_letters
from postroad.intake.pause import set_paused
from tests.integration.door import open_door
from tests.integration.road import Road, attempt, open_road, pipeline

PAGE = (Path(__file__).parents[2] / "docs/sql.md").read_text("utf-8")
QUERIES = dict(re.findall(r"^### ([^\n]+)\n+```sql\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))
CALLS = re.findall(r"^curl \"?localhost:8080([^\"\n]+)", PAGE, re.MULTILINE)

ORDERS = pipeline("orders", validate=(), reserve="validate", invoice="validate", ship=("reserve", "invoice"))
MOMENT, WHILE = "a moment", "a while"
WAITED, RAN = timedelta(seconds=2), timedelta(seconds=3)


@pytest.fixture
async def scene(settings: Settings) -> AsyncIterator[tuple[Road, dict[str, UUID]]]:
    """Orders in every state, and their ids by name."""
    async with open_road(settings, ORDERS) as road:
        keys = {name: f"order-{number}" for number, name in enumerate(("done", "dead", "dead too", "failing"), start=1)}
        keys |= {"nightly": "schedule/nightly/2026-12-01T00:00:00Z", "closed": "order-8", "closed too": "order-9"}
        tasks: dict[str, UUID] = {}
        for name in ("done", "dead", "dead too", "failing", "handed", "cancelled", "nightly", "closed", "closed too"):
            payload = {"sku": "n17" if name == "done" else "x"}
            tasks[name] = await road.accept(ORDERS, key=keys.get(name), payload=payload)
            if name not in ("cancelled", "nightly"):
                await attempt(road, tasks[name], "validate", pipeline=ORDERS)
        await attempt(
            road, tasks["done"], "reserve", Retry("out of stock", after=0), error="Traceback 1", pipeline=ORDERS
        )
        for stage in ("reserve", "invoice", "ship"):
            await attempt(road, tasks["done"], stage, pipeline=ORDERS)
        for number, name in enumerate(("dead", "dead too"), start=1):
            await attempt(road, tasks[name], "reserve", Reject(f"no sku {number}"), pipeline=ORDERS)
        await attempt(road, tasks["failing"], "reserve", Retry("out of stock", after=3600), pipeline=ORDERS)
        await attempt(road, tasks["handed"], "invoice", Handed(b"x" * 32, timedelta(hours=1)), pipeline=ORDERS)
        for name in ("closed", "closed too"):
            await attempt(road, tasks[name], "invoice", Reject("no address"), pipeline=ORDERS)
        await road.ask('update postroad.task set labels = \'{"team": "blue"}\' where task_id = :id', id=tasks["done"])
        await road.ask(
            "insert into postroad.process"
            "       (process, role, host, pid, version, stages, is_leading, running, started_at, seen_at, stopped_at)"
            " values ('r1', 'relay', 'h', 1, '0', '{}', true, '[]', now(), now(), null),"
            "        ('w1', 'stage', 'h', 2, '0', '{orders.validate,orders.reserve}', false,"
            "         jsonb_build_array(jsonb_build_object('task_id', cast(:id as text), 'stage', 'validate',"
            "                                              'attempt', 1, 'since', now())), now(), now(), null),"
            "        ('w2', 'stage', 'h', 3, '0', '{orders.ship}', false, '[]', now(), now() - interval '1 min', null)",
            id=str(tasks["nightly"]),
        )
        async with road.engine.begin() as connection:
            await cancel(connection, [tasks["cancelled"]], "postroad", by="ada", reason="not paid")
        async with road.engine.begin() as connection:
            await set_paused(connection, "orders", "ship", "postroad", paused=True, by="ada", reason="a strike")
        async with road.engine.begin() as connection:
            selection = Selection(tasks=[tasks["closed"], tasks["closed too"]])
            letters = [letter for letter, _ in await find_dead_letters(connection, selection)]
            await discard(connection, letters, "postroad", by="ada", reason="moved")
        yield road, tasks


PAUSED = ({"paused": False}, {"paused": True})
VALIDATED = ("StageCompleted:validate", 1, "done", WAITED, RAN, None, None)

EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    "Where is it?": [
        ("orders", "completed", "ship_done", ["validate", "reserve", "invoice", "ship"], 1, MOMENT, MOMENT)
    ],
    "What is to be done of it, and what holds that up?": [
        ("invoice", "ready", MOMENT, None, 0, None, None, []),
        ("reserve", "retrying", MOMENT, MOMENT, 1, "host:1:00000000", "out of stock", []),
        ("ship", "blocked", MOMENT, None, 0, None, None, ["invoice", "reserve"]),
    ],
    "How did it get there?": [
        ("TaskCreated", None, None, None, None, None, None),
        VALIDATED,
        ("StageFailed:reserve", 1, "failed", WAITED, RAN, "out of stock", None),
        ("StageCompleted:reserve", 2, "done", WAITED, RAN, None, None),
        ("StageCompleted:invoice", 1, "done", WAITED, RAN, None, None),
        ("StageRequested:ship", None, None, None, None, "last", None),
        ("StageCompleted:ship", 1, "done", WAITED, RAN, None, None),
        ("TaskCompleted", None, None, None, None, None, None),
    ],
    "What did it spend its time with?": [
        ("reserve", 2, 2 * WAITED, 2 * RAN),
        ("invoice", 1, WAITED, RAN),
        ("ship", 1, WAITED, RAN),
        ("validate", 1, WAITED, RAN),
    ],
    "What did its last failure say?": [("StageFailed:reserve", 1, MOMENT, "out of stock", "Traceback 1")],
    "What became of an idempotency key?": [("order-1", "done", "completed", "ship_done")],
    "By a label": [("done", "completed", "ship_done", MOMENT)],
    "By something in the payload": [("done", "completed", MOMENT)],
    "The oldest that are open": [
        ("failing", "orders", "in_progress", "failed_at_stage:reserve", WHILE),
        ("handed", "orders", "in_progress", "waiting_at_stage:invoice", WHILE),
        ("nightly", "orders", "pending", "received", WHILE),
    ],
    "The steps of all tasks with a label": [
        ("done", "StageCompleted:validate", "done", MOMENT),
        ("done", "StageFailed:reserve", "failed", MOMENT),
        ("done", "StageCompleted:reserve", "done", MOMENT),
        ("done", "StageCompleted:invoice", "done", MOMENT),
        ("done", "StageCompleted:ship", "done", MOMENT),
    ],
    "Those of a schedule": [("schedule/nightly/2026-12-01T00:00:00Z", "nightly", "pending")],
    "What failed in the last hour for good, and why?": [
        (MOMENT, "dead too", "reserve", 1, "no sku 2"),
        (MOMENT, "dead", "reserve", 1, "no sku 1"),
    ],
    "What fails alike?": [("orders", "reserve", 2, MOMENT, MOMENT, "no sku 2", "a fingerprint")],
    "What is tried again, and when?": [("failing", "reserve", 1, MOMENT, "out of stock")],
    "How often is each stage retried?": [
        ("orders", "reserve", 5, 2, 2, Decimal("40.0")),
        ("orders", "invoice", 3, 0, 2, Decimal("0.0")),
        ("orders", "ship", 1, 0, 0, Decimal("0.0")),
        ("orders", "validate", 7, 0, 0, Decimal("0.0")),
    ],
    "Which are the slowest?": [
        ("orders", "invoice", 3, RAN, RAN, RAN, WAITED),
        ("orders", "reserve", 5, RAN, RAN, RAN, WAITED),
        ("orders", "ship", 1, RAN, RAN, RAN, WAITED),
        ("orders", "validate", 7, RAN, RAN, RAN, WAITED),
    ],
    "What is at each of them?": [
        ("invoice", "blocked", 1, MOMENT),
        ("invoice", "discarded", 2, MOMENT),
        ("invoice", "ready", 3, MOMENT),
        ("invoice", "waiting", 1, MOMENT),
        ("reserve", "blocked", 1, MOMENT),
        ("reserve", "dead", 2, MOMENT),
        ("reserve", "ready", 3, MOMENT),
        ("reserve", "retrying", 1, MOMENT),
        ("ship", "blocked", 7, MOMENT),
        ("validate", "running", 1, MOMENT),
    ],
    "Which services have had their work for longest?": [("handed", "invoice", MOMENT, MOMENT)],
    "Which have no worker?": [("orders", "invoice"), ("orders", "ship")],
    "Which are paused, by whom and since when?": [("orders", "ship", "ada", MOMENT, None)],
    "How many tasks ended in each minute?": [
        (MOMENT, "cancelled", 1),
        (MOMENT, "completed", 1),
        (MOMENT, "failed", 4),
    ],
    "How long does a task take?": [("orders", 1, WHILE, WHILE)],
    "What is running right now?": [("w1", "validate", "nightly", 1, WHILE)],
    "Which processes are there?": [
        ("relay", "r1", "alive", True, 0, WHILE),
        ("stage", "w1", "alive", False, 1, WHILE),
        ("stage", "w2", "silent", False, 0, WHILE),
    ],
    "Who cancelled what, and why?": [
        (MOMENT, "ada", "cancelled", "not paid", {"status": "pending", "stage_status": "received"})
    ],
    "What did one of them do today?": [
        (
            MOMENT, "cancel", "orders", "cancelled", "not paid",
            {"status": "pending", "stage_status": "received"}, {"status": "cancelled"},
        ),
        (MOMENT, "pause", "orders.ship", None, "a strike", *PAUSED),
        (MOMENT, "discard", "dead letters", None, "moved", None, {"letters": 2, "stages": ["orders.invoice"]}),
    ],
}  # fmt: skip
"""What each query answers: tasks by their names; times that pass, and fingerprints, in words."""

OF_TASK = {"What is to be done of it, and what holds that up?": "failing"}
"""Which task a query is asked of, if not the one that is done."""


def test_each_query_has_an_answer() -> None:
    assert list(QUERIES) == list(EXPECTED)
    assert len(re.findall(r"^```sql$", PAGE, re.MULTILINE)) == len(QUERIES)


async def test_each_query_is_answered(scene: tuple[Road, dict[str, UUID]], subtests: pytest.Subtests) -> None:
    road, tasks = scene
    async with road.engine.connect() as connection:
        for title, query in QUERIES.items():
            with subtests.test(title):
                named = {"task": str(tasks[OF_TASK.get(title, "done")]), "key": "order-1", "who": "ada"}
                rows = await answer(connection, query, named)
                told = [tuple(in_words(value, tasks) for value in row) for row in rows]
                if title == "How many tasks ended in each minute?":
                    told = minutes_together(told)
                assert told == [tuple(in_words(value, tasks) for value in row) for row in EXPECTED[title]]


async def test_each_call_is_answered(scene: tuple[Road, dict[str, UUID]], subtests: pytest.Subtests) -> None:
    road, tasks = scene
    async with open_door(road.settings) as client:
        for path in CALLS:
            with subtests.test(path):
                reply = await client.get(path.replace("$ID", str(tasks["done"])))
                assert reply.status_code == 200, reply.text
    assert len(CALLS) >= 8


async def answer(connection: AsyncConnection, query: str, named: dict[str, str]) -> list[Any]:
    """What ``query`` answers, with its variables of psql replaced."""
    for name, value in named.items():
        query = query.replace(f":'{name}'", f"'{value}'")
    return list(await connection.exec_driver_sql(query.replace("%", "%%").rstrip().removesuffix(";")))


def in_words(value: Any, tasks: dict[str, UUID]) -> Any:
    """``value``, or what stands for one that differs from run to run."""
    if isinstance(value, datetime):
        return MOMENT
    if isinstance(value, timedelta) and value not in (WAITED, RAN, 2 * WAITED, 2 * RAN):
        return WHILE
    if isinstance(value, UUID):
        return next(name for name, task_id in tasks.items() if task_id == value)
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{12}", value):
        return "a fingerprint"
    return value


def minutes_together(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows as if all had ended in one minute: a minute may have passed meanwhile."""
    counts: dict[str, int] = {}
    for _, status, count in rows:
        counts[status] = counts.get(status, 0) + count
    return [(MOMENT, status, count) for status, count in sorted(counts.items())]
