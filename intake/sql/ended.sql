-- Which of these tasks have come to an end. Parameter: task_id uuid[]. Leans on the primary key. Returns task_id; also of
-- those that are gone, for which nobody need wait.
select asked.task_id
  from unnest(%(task_id)s::uuid[]) as asked (task_id)
  left join postroad.task on task.task_id = asked.task_id
 where task.status in ('completed', 'failed', 'cancelled') or task.task_id is null
