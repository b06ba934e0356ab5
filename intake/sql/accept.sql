-- Accept tasks: each with its idempotency key and the event of its creation, all or nothing.
-- Parameters, arrays of one length: task_id uuid[] (each once), pipeline text[], payload text[] (JSON), labels text[]
-- (JSON), key text[] (null: none), request_hash bytea[], traceparent text[].
-- Locks the new rows. Keys are inserted in order, so that two groups that share keys cannot wait for each other; one
-- that somebody else is about to commit is waited for.
-- Returns place bigint (from 1), is_known boolean (there is such a pipeline), created_at (null: not created, since its
-- key was there already).
with submission as materialized (
    select s.*, pipeline.pipeline is not null as is_known
      from unnest(%(task_id)s::uuid[], %(pipeline)s::text[], %(payload)s::text[], %(labels)s::text[], %(key)s::text[],
                  %(request_hash)s::bytea[], %(traceparent)s::text[])
           with ordinality as s (task_id, pipeline, payload, labels, key, request_hash, traceparent, place)
      left join postroad.pipeline using (pipeline)
),
keyed as (
    insert into postroad.intake_key (pipeline, key, request_hash, task_id)
    select pipeline, key, request_hash, task_id
      from submission
     where is_known and key is not null
     order by pipeline, key, place
        on conflict do nothing
    returning task_id
),
created as (
    insert into postroad.task (task_id, pipeline, payload, labels, trace_id, traceparent)
    select task_id, pipeline, payload::jsonb, labels::jsonb, substr(traceparent, 4, 32), traceparent
      from submission
     where is_known and (key is null or task_id in (select task_id from keyed))
    returning task_id, created_at
),
event as (
    insert into postroad.outbox (task_id, pipeline, type, traceparent)
    select submission.task_id, submission.pipeline, 'TaskCreated', submission.traceparent
      from created
      join submission using (task_id)
     order by submission.place
)
select submission.place, submission.is_known, created.created_at
  from submission
  left join created using (task_id)
 order by submission.place
