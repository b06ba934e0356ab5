"""The ceiling: what Postgres allows to whoever keeps no promises beyond its own.

One process moves 500 tasks a transaction from stage to stage with plain psycopg: takes their rows, stores their
results, queues them for the next stage. No streams, no events, no retries, no order.
"""

import json
import time
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.types.json import set_json_dumps, set_json_loads

from .work import STAGES, compute, order

BATCH = 500

TABLES = (
    "create table ceiling_queue (place bigint generated always as identity primary key, task_id int not null,"
    " stage int not null, payload jsonb not null)",
    "create table ceiling_result (task_id int not null, stage int not null, result jsonb not null,"
    " primary key (task_id, stage))",
)

TAKE = """
    with next as (select place from ceiling_queue order by place limit %s for update skip locked)
    delete from ceiling_queue using next where ceiling_queue.place = next.place
    returning task_id, stage, payload::text
"""

STORE = """
    insert into ceiling_result (task_id, stage, result)
    select * from unnest(%s::int[], %s::int[], %s::text[]::jsonb[])
"""

PASS_ON = """
    insert into ceiling_queue (task_id, stage, payload)
    select * from unnest(%s::int[], %s::int[], %s::text[]::jsonb[])
"""


def drain(database_url: str, tasks: int) -> tuple[float, float]:
    """Queue ``tasks`` orders, then move them through all stages. Returns seconds, and CPU seconds of this process."""
    set_json_dumps(json.dumps)
    set_json_loads(json.loads)
    with psycopg.connect(database_url, autocommit=True) as connection:
        for table in TABLES:
            connection.execute(table.encode())
        for start in range(0, tasks, 1000):
            numbers = range(start, min(start + 1000, tasks))
            _queue(connection, [(number, 0, json.dumps(order(number))) for number in numbers])
        connection.execute("checkpoint")
        began, cpu = time.monotonic(), time.process_time()
        while _move(connection):
            pass
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
        row = connection.execute("select count(*) from ceiling_result").fetchone()
        assert row is not None
        assert row[0] == tasks * len(STAGES)
    return seconds, cpu


def _move(connection: psycopg.Connection[Any]) -> int:
    with connection.transaction():
        rows = connection.execute(TAKE, (BATCH,)).fetchall()
        if not rows:
            return 0
        results = [json.dumps(compute(STAGES[stage], json.loads(payload))) for _, stage, payload in rows]
        connection.execute(STORE, ([row[0] for row in rows], [row[1] for row in rows], results))
        _queue(connection, [(task, stage + 1, payload) for task, stage, payload in rows if stage + 1 < len(STAGES)])
    return len(rows)


def _queue(connection: psycopg.Connection[Any], rows: Sequence[tuple[int, int, str]]) -> None:
    if rows:
        connection.execute(PASS_ON, tuple(list(column) for column in zip(*rows, strict=True)))
