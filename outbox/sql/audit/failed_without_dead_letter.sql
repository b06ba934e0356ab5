-- Failed tasks without an unresolved dead letter, and unresolved dead letters of tasks that did not fail.
select (select count(*)
          from postroad.task
         where status = 'failed'
           and not exists (select from postroad.dead_letter
                            where dead_letter.task_id = task.task_id
                              and (resolved_at is null or resolution = 'discarded')))
     + (select count(*)
          from postroad.dead_letter
          join postroad.task using (task_id)
         where resolved_at is null and task.status not in ('failed', 'cancelled'))
