-- Events that tell of a task that there is not.
select count(*)
  from postroad.outbox
 where not exists (select from postroad.task where task.task_id = outbox.task_id)
