-- Delete finished tasks, with their stage runs and dead letters: those that ended before the retention, and an hour
-- before the oldest event that is kept, so that no event outlives its task. A failed task stays until its dead letters
-- are resolved. Parameters: retention interval, "limit" int. Leans on task_created_at and the outbox' primary key.
-- Locks what it deletes, and skips what others have locked. The row count says how many.
with old as (
    select task_id
      from postroad.task
     where created_at < now() - %(retention)s::interval
       and finished_at < now() - %(retention)s::interval
       and finished_at < coalesce((select occurred_at from postroad.outbox order by position limit 1), now())
                         - interval '1 hour'
       and (status in ('completed', 'cancelled')
            or status = 'failed' and not exists (
               select from postroad.dead_letter
                where dead_letter.task_id = task.task_id and resolved_at is null))
     order by created_at
     limit %(limit)s
       for update skip locked
)
delete from postroad.task where task_id in (select task_id from old)
