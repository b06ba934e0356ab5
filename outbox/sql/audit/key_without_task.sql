-- Idempotency keys, of tasks that cannot have been pruned yet, whose task there is not.
select count(*)
  from postroad.intake_key
 where created_at > (select min(created_at) from postroad.task)
   and not exists (select from postroad.task where task.task_id = intake_key.task_id)
