-- Tasks, no older than the oldest event that is kept, whose creation no event tells of.
select count(*)
  from postroad.task
 where created_at >= (select min(occurred_at) from postroad.outbox)
   and not exists (select from postroad.outbox where outbox.task_id = task.task_id and type = 'TaskCreated')
