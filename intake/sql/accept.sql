-- Accept tasks: each with its idempotency key and the event of its creation, all or nothing.
-- Parameters, arrays of one length: task_id uuid[], pipeline text[], payload text[] (JSON), labels text[]
-- (JSON), key text[] (null: none), request_hash bytea[], traceparent text[].
-- Locks the new rows. All keys are inserted before any task, and both in order, so that two groups that share some
-- cannot wait for each other; one that somebody else is about to commit is waited for.
-- Leans on the primary key of task, by a lateral that the planner cannot turn into a join of the whole table.
-- Returns place bigint (from 1), is_known boolean (there is such a pipeline), is_taken boolean (there is a task of this
-- task_id), created_at (null: not created, since its key or its task_id was there already). A task_id that comes twice,
-- or that somebody else is about to commit, violates task_pkey.
with submission as materialized (
    select s.*, pipeline.pipeline is not null as is_known, taken.task_id is not null as is_taken
      from unnest(%(task_id)s::uuid[], %(pipeline)s::text[], %(payload)s::text[], %(labels)s::text[], %(key)s::text[],
                  %(request_hash)s::bytea[], %(traceparent)s::text[])
           with ordinality as s (task_id, pipeline, payload, labels, key, request_hash, traceparent, place)
      left join postroad.pipeline using (pipeline)
      left join lateral (select task_id from postroad.task where task.task_id = s.task_id offset 0) as taken on true
),
keyed as (
    insert into postroad.intake_key (pipeline, key, request_hash, task_id)
    select pipeline, key, request_hash, task_id
      from submission
     where is_known and not is_taken and key is not null
     order by pipeline, key, place
        on conflict do nothing
    returning task_id
),
created as (
    insert into postroad.task (task_id, pipeline, payload, labels, trace_id, traceparent)
    select task_id, pipeline, payload::jsonb, labels::jsonb, substr(traceparent, 4, 32), traceparent
      from submission
     where is_known and not is_taken and (key is null or task_id in (select task_id from keyed))
     order by task_id
    returning task_id, created_at
),
event as (
    insert into postroad.outbox (task_id, pipeline, type, traceparent)
    select submission.task_id, submission.pipeline, 'TaskCreated', submission.traceparent
      from created
      join submission using (task_id)
     order by submission.place
)
select submission.place, submission.is_known, submission.is_taken, created.created_at
  from submission
  left join created using (task_id)
 order by submission.place
