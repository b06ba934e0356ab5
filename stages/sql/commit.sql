-- Commit what attempts have come to: stage runs, tasks, dead letters, events, all or nothing.
-- Parameters, arrays of one length, one outcome a task: task_id uuid[], version int[] (as loaded), stage text[],
-- kind text[] (done, failed, snoozed, waiting, dead), attempts int[] (with this one), result text[] (JSON), reason
-- text[], error text[], fingerprint text[], delay interval[] (until a retry), started_at timestamptz[], data
-- text[] (of its event, JSON: put together by the worker, as Postgres takes longer to build it than to read it), lease
-- bytea[] (of the waiting, else null: then the one there was stays, to know a report that is repeated); and worker text. Long
-- texts go in binary form: as text psycopg escapes each quote in them.
--
-- Takes only tasks whose version is still the loaded one and which are neither completed nor cancelled, in stages that
-- are still in force; returns their task_id, and ended: completed or failed, if they are that from now on. For the others somebody was first: load again, decide again.
-- Locks the task rows, one by one in the order of task_id, so that two workers cannot wait for each other: lateral,
-- so that the primary key is used whatever the planner believes of the table (when it was empty, or grew since).
-- A failed task stays failed: another stage of it is dead until a person requeues that.
--
-- A stage that comes after several others is asked for here: only the transaction that completes the last of them,
-- with the task's row locked, knows that it is the last.
with outcome as materialized (
    select *
      from unnest(%(task_id)s::uuid[], %(version)s::int[], %(stage)s::text[], %(kind)s::text[], %(attempts)s::int[],
                  %(result)b::text[], %(reason)b::text[], %(error)b::text[], %(fingerprint)s::text[],
                  %(delay)s::interval[], %(started_at)s::timestamptz[], %(data)b::text[], %(lease)s::bytea[])
           as o (task_id, version, stage, kind, attempts, result, reason, error, fingerprint, delay, started_at, data,
                 lease)
     order by task_id
),
held as materialized (
    select outcome.*, task.pipeline, task.status, task.traceparent, task.stages_done, task.priority
      from outcome
     cross join lateral (
           select pipeline, status, traceparent, stages_done, priority
             from postroad.task
            where task.task_id = outcome.task_id
              and task.version = outcome.version
              and task.status not in ('completed', 'cancelled')
              and outcome.stage <> all (task.stages_done)
              and exists (select from postroad.stage
                           where stage.pipeline = task.pipeline and stage.stage = outcome.stage)
              for update of task
           ) as task
),
decided as materialized (
    select held.*,
           kind = 'waiting' and exists (
               select from postroad.stage_run as before
                where before.task_id = held.task_id and before.stage = held.stage and before.status = 'waiting'
               ) as is_handed_anew,
           case when kind = 'done' then stages_done || stage else stages_done end as stages_done_now,
           case
               when kind = 'dead' or status = 'failed' then 'failed'
               when kind = 'done' and not exists (
                    select from postroad.stage as other
                     where other.pipeline = held.pipeline and other.stage <> all (held.stages_done || held.stage)
                    ) then 'completed'
               else 'in_progress'
           end as status_now
      from held
),
task_written as (
    update postroad.task
       set status = decided.status_now,
           stage_status = case kind
                              when 'done' then decided.stage || '_done'
                              when 'snoozed' then task.stage_status
                              when 'waiting' then 'waiting_at_stage:' || decided.stage
                              else 'failed_at_stage:' || decided.stage
                          end,
           stages_done = decided.stages_done_now,
           retry_count = task.retry_count + (kind = 'failed' or is_handed_anew)::int,
           version = task.version + 1,
           updated_at = now(),
           finished_at = case when decided.status_now in ('completed', 'failed')
                              then coalesce(task.finished_at, now()) end
      from decided
     where task.task_id = decided.task_id
),
run_written as (
    insert into postroad.stage_run as run
           (task_id, stage, status, attempts, result, error, next_retry_at, worker, started_at, finished_at, lease)
    select task_id, stage, kind, attempts, result::jsonb, coalesce(error, reason), now() + delay, %(worker)s,
           started_at, case when kind in ('done', 'dead') then now() end, lease
      from decided
        on conflict (task_id, stage) do update
       set status = excluded.status, attempts = excluded.attempts, result = excluded.result, error = excluded.error,
           next_retry_at = excluded.next_retry_at, worker = excluded.worker, started_at = excluded.started_at,
           finished_at = excluded.finished_at, lease = coalesce(excluded.lease, run.lease),
           answer = case when excluded.lease is null then run.answer - 'result' end
     where run.status <> 'done'
),
dead_letter_written as (
    insert into postroad.dead_letter (task_id, pipeline, stage, reason, error, fingerprint, attempts)
    select task_id, pipeline, stage, reason, error, fingerprint, attempts
      from decided
     where kind = 'dead'
),
event_written as (
    insert into postroad.outbox (task_id, pipeline, type, stage, data, traceparent, priority)
    select task_id, pipeline,
           case kind when 'done' then 'StageCompleted' when 'failed' then 'StageFailed'
                     when 'snoozed' then 'StageSnoozed' when 'waiting' then 'StageHanded' else 'StageDead' end,
           stage,
           data::jsonb,
           traceparent, priority
      from decided
    union all
    select decided.task_id, decided.pipeline, 'StageRequested', next.stage, jsonb_build_object('reason', 'last'),
           decided.traceparent, decided.priority
      from decided
      join postroad.stage as next on next.pipeline = decided.pipeline
     where decided.kind = 'done'
       and cardinality(next.after) > 1
       and decided.stage = any (next.after)
       and next.after <@ decided.stages_done_now
       and next.stage <> all (decided.stages_done_now)
    union all
    select task_id, pipeline, case status_now when 'completed' then 'TaskCompleted' else 'TaskFailed' end, null, '{}',
           traceparent, priority
      from decided
     where status_now in ('completed', 'failed') and status_now <> status
)
select task_id, case when status_now in ('completed', 'failed') and status_now <> status then status_now end as ended
  from decided
