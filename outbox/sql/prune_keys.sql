-- Delete idempotency keys of tasks that were pruned, a week after the retention. Parameters: retention interval, "limit" int.
-- The row count says how many.
delete from postroad.intake_key
 where (pipeline, key) in (
       select pipeline, key
         from postroad.intake_key as old
        where created_at < now() - %(retention)s::interval - interval '7 days'
          and not exists (select from postroad.task where task.task_id = old.task_id)
        limit %(limit)s
          for update skip locked)
