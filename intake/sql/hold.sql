-- Hold tasks until the transaction ends. Parameter: task_id uuid[]. Leans on the primary key.
-- Locks them in the order of task_id, as commits do. In a statement of its own, before the one that decides: only what
-- that one sees is as new as the locks, whatever a worker committed while they were waited for.
select task_id
  from postroad.task
 where task_id = any (%(task_id)s::uuid[])
 order by task_id
   for update
