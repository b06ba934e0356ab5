-- Idempotency keys, no older than the oldest event that is kept, whose task there is not: tasks are pruned only when
-- their events are gone.
with violation as (
    select task_id
      from postroad.intake_key
     where created_at >= (select min(occurred_at) from postroad.outbox)
       and not exists (select from postroad.task where task.task_id = intake_key.task_id)
)
select (select count(*) from violation) as violations, array(select task_id from violation limit 5) as tasks
