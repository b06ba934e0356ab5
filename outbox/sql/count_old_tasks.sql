-- How many tasks prune_tasks would delete. Parameter: retention interval. Returns one bigint.
select count(*)
  from postroad.task
 where created_at < now() - %(retention)s::interval
   and finished_at < now() - %(retention)s::interval
   and finished_at < coalesce((select occurred_at from postroad.outbox order by position limit 1), now())
                     - interval '1 hour'
   and (status in ('completed', 'cancelled')
        or status = 'failed' and not exists (
           select from postroad.dead_letter
            where dead_letter.task_id = task.task_id and resolved_at is null))
