-- Failed tasks without an unresolved dead letter, and unresolved dead letters of tasks that did not fail.
with violation as (
    select task_id
      from postroad.task
     where status = 'failed'
       and not exists (select from postroad.dead_letter
                        where dead_letter.task_id = task.task_id
                          and (resolved_at is null or resolution = 'discarded'))
    union all
    select task_id
      from postroad.dead_letter
      join postroad.task using (task_id)
     where resolved_at is null and task.status not in ('failed', 'cancelled')
)
select (select count(*) from violation) as violations, array(select task_id from violation limit 5) as tasks
