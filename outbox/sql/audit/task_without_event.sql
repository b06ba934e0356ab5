-- Tasks, no older than the oldest event that is kept, whose creation no event tells of.
with violation as (
    select task_id
      from postroad.task
     where created_at >= (select min(occurred_at) from postroad.outbox)
       and not exists (select from postroad.outbox where outbox.task_id = task.task_id and type = 'TaskCreated')
)
select (select count(*) from violation) as violations, array(select task_id from violation limit 5) as tasks
