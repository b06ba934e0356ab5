-- What idempotency keys stand for. Parameters: pipeline text[], key text[] of one length. Leans on the primary key.
-- Returns pipeline, key, request_hash bytea, task_id uuid, created_at, traceparent (null: the task was pruned).
select known.pipeline, known.key, known.request_hash, known.task_id, known.created_at, task.traceparent
  from postroad.intake_key as known
  join unnest(%(pipeline)s::text[], %(key)s::text[]) as wanted (pipeline, key) using (pipeline, key)
  left join postroad.task on task.task_id = known.task_id
