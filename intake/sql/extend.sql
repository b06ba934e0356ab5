-- Let a service take longer over work that was handed to it. Parameters: lease bytea, within interval (from now).
-- The entry that waits for it comes back when it was to, and is put off then. Returns task_id, stage, until timestamptz;
-- no row if the lease does not hold (see report).
update postroad.stage_run as run
   set next_retry_at = now() + %(within)s
  from postroad.task
 where run.lease = %(lease)s
   and run.status = 'waiting'
   and run.answer is null
   and task.task_id = run.task_id
   and task.status not in ('completed', 'cancelled')
returning run.task_id, run.stage, run.next_retry_at as until
