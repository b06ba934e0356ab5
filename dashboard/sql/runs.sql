-- The stage runs of one task. Parameters: task_id uuid, most int: characters of a result at most. Results are Postgres' own
-- text, as payloads in task. Leans on the primary key. Returns stage, status, attempts, result text, result_size int, error,
-- next_retry_at, worker, started_at, finished_at, by the start of their last attempt.
select run.stage, run.status, run.attempts, left(written.result, %(most)s) as result,
       length(written.result) as result_size, run.error, run.next_retry_at, run.worker, run.started_at, run.finished_at
  from postroad.stage_run as run
 cross join lateral (select jsonb_pretty(run.result) as result) as written
 where run.task_id = %(task_id)s
 order by run.started_at, run.stage
