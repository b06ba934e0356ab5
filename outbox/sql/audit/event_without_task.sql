-- Events that tell of a task that there is not.
with violation as (
    select task_id
      from postroad.outbox
     where not exists (select from postroad.task where task.task_id = outbox.task_id)
)
select (select count(*) from violation) as violations, array(select task_id from violation limit 5) as tasks
