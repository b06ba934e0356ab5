"""How long the dashboard's pages and the lists of the API take beside millions of tasks and their events."""

import statistics
import sys
import time
from collections.abc import Mapping

import httpx2
import psycopg

from tests.acceptance.deployment import Deployment

from .bed import bed, table
from .intake import free_port

CHUNK = 250_000
"""Tasks that are made in one transaction."""

ASKED = 5
"""How often each page is asked for, after once."""

# Of 200 tasks one is dead at its second stage and one is open; the others are completed, with five events each. They
# were accepted 20 ms after each other, the last of them now.
FILL = """
with made as materialized (
    select number, number %% 200 as kind, moment,
           encode(overlay(uuid_send(gen_random_uuid())
                  placing substring(int8send((extract(epoch from moment) * 1000)::bigint) from 3) from 1 for 6),
                  'hex')::uuid as task_id,
           md5(number::text) as trace_id
      from generate_series(%(first)s::bigint, %(last)s::bigint) as number
     cross join lateral (select now() - (%(all)s - number) * interval '20 ms' as moment) as at
),
task as (
    insert into postroad.task (task_id, pipeline, payload, labels, status, stage_status, stages_done, version, trace_id,
                               traceparent, created_at, updated_at, finished_at)
    select task_id, 'plain', jsonb_build_object('order', number, 'customer', 'customer-' || number %% 9973),
           case when number %% 10 = 0 then jsonb_build_object('shop', 'shop-' || number %% 30) else '{}' end,
           case kind when 0 then 'failed' when 1 then 'in_progress' else 'completed' end,
           case kind when 0 then 'failed_at_stage:allocate' when 1 then 'validate_done' else 'finalize_done' end,
           case when kind < 2 then '{validate}'::text[] else '{validate,allocate,finalize}' end,
           case when kind < 2 then 2 else 4 end,
           trace_id, '00-' || trace_id || '-b7ad6b7169203331-00', moment, moment,
           case when kind <> 1 then moment end
      from made
),
key as (
    insert into postroad.intake_key (pipeline, key, request_hash, task_id, created_at)
    select 'plain', 'order-' || number, '\\x00', task_id, moment from made
),
run as (
    insert into postroad.stage_run (task_id, stage, status, attempts, result, error, worker, started_at, finished_at)
    select task_id, stage, case when kind = 0 and stage = 'allocate' then 'dead' else 'done' end, 1,
           '{"lines": 3}', case when kind = 0 and stage = 'allocate' then 'OSError: no stock' end, 'bench:1:00000000',
           moment, moment
      from made
     cross join unnest('{validate,allocate,finalize}'::text[]) with ordinality as stage (stage, place)
     where kind > 1 or kind = 0 and place < 3 or kind = 1 and place < 2
),
letter as (
    insert into postroad.dead_letter (task_id, pipeline, stage, reason, fingerprint, attempts, died_at)
    select task_id, 'plain', 'allocate', 'OSError: no stock at shelf ' || number %% 1000,
           md5('shelf' || number %% 40), 1, moment
      from made
     where kind = 0
)
insert into postroad.outbox (slot, task_id, pipeline, type, stage, data, traceparent, occurred_at)
select mod(extract(epoch from moment)::bigint / 432000, 8), task_id, 'plain', event.type, event.stage,
       case when event.stage is null then '{}'
            else jsonb_build_object('attempt', 1, 'worker', 'bench:1:00000000', 'started_at', moment,
                                    'waited_seconds', 0.004, 'ran_seconds', 0.002) end,
       '00-' || trace_id || '-b7ad6b7169203331-00', moment
  from made
 cross join (values (1, 'TaskCreated', null), (2, 'StageCompleted', 'validate'), (3, 'StageCompleted', 'allocate'),
                    (4, 'StageCompleted', 'finalize'), (5, 'TaskCompleted', null)) as event (place, type, stage)
 where kind > 1 or event.place < 3
 order by number, event.place
"""


def run(*, tasks: int) -> int:
    """Make so many tasks, ask for every page, and print how long each took."""
    with bed({"fsync": "off", "full_page_writes": "off", "max_wal_size": "8GB", "shared_buffers": "1GB"}) as servers:
        deployment = servers.deployment("bench.work", port=free_port())
        assert deployment.run("deploy").code == 0
        try:
            _fill(deployment, tasks)
            relay = deployment.process("relay", "relay")
            intake = deployment.process("intake", "serve", port=deployment.settings.port)
            deployment.await_intake(intake)
            relay.await_line("relaying from")
            rows = [_row(deployment, name, path) for name, path in _pages(deployment).items()]
        finally:
            deployment.close()
    print(table(rows))
    return 0


def _fill(deployment: Deployment, tasks: int) -> None:
    began = time.monotonic()
    with psycopg.connect(deployment.settings.database_url, autocommit=True) as connection:
        connection.execute("set synchronous_commit = off")
        for first in range(1, tasks + 1, CHUNK):
            last = min(first + CHUNK - 1, tasks)
            connection.execute(FILL, {"first": first, "last": last, "all": tasks})
            print(f"{last:,} tasks after {time.monotonic() - began:,.0f} s", file=sys.stderr, flush=True)
        connection.execute("vacuum analyze")
    events, size = deployment.query(
        "select (select count(*) from postroad.outbox), pg_size_pretty(pg_database_size(current_database()))"
    )[0]
    print(f"{tasks:,} tasks, {events:,} events, {size}\n")


def _pages(deployment: Deployment) -> Mapping[str, str]:
    """The pages, by what they are."""
    ((failed, trace),) = deployment.query(
        "select task_id::text, trace_id from postroad.task where status = 'failed' order by created_at limit 1 offset 9"
    )
    ((fingerprint,),) = deployment.query("select fingerprint from postroad.dead_letter limit 1")
    group = f"pipeline=plain&stage=allocate&fingerprint={fingerprint}"
    return {
        "overview": "/ui/",
        "tasks": "/ui/tasks",
        "tasks that failed": "/ui/tasks?status=failed",
        "tasks with a label": "/ui/tasks?label=shop:shop-10",
        "tasks with a fingerprint": f"/ui/tasks?fingerprint={fingerprint}",
        "tasks at a stage": "/ui/tasks?pipeline=plain&stage=allocate",
        "search by key": "/ui/find?q=order-4711",
        "search by trace": f"/ui/find?q={trace}",
        "task": f"/ui/tasks/{failed}",
        "failures": "/ui/failures",
        "a group of failures": f"/ui/failures/group?{group}",
        "requeue, the preview": f"/ui/failures/requeue?{group}",
        "stages": "/ui/stages",
        "a stage": "/ui/stages/plain/allocate",
        "workers": "/ui/workers",
        "GET /v1/tasks": "/v1/tasks",
        "GET /v1/pipelines": "/v1/pipelines",
        "GET /v1/tasks/ID/explain": f"/v1/tasks/{failed}/explain",
    }


def _row(deployment: Deployment, name: str, path: str) -> dict[str, str]:
    took, statuses = [], set()
    with httpx2.Client(base_url=deployment.url, timeout=60, follow_redirects=True) as client:
        for _ in range(1 + ASKED):
            began = time.perf_counter()
            statuses.add(client.get(path).status_code)
            took.append((time.perf_counter() - began) * 1e3)
            # What is shared between those who look is older than it may be by then.
            time.sleep(0.3)
    first, *later = took
    return {
        "page": name,
        "status": ", ".join(map(str, sorted(statuses))),
        "first, ms": f"{first:,.0f}",
        "median, ms": f"{statistics.median(later):,.0f}",
        "longest, ms": f"{max(later):,.0f}",
    }
