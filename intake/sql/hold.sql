-- Hold the tasks of these dead letters until the transaction ends. Parameter: dead_letter_id bigint[].
-- Locks them in the order of task_id, as commits do. In a statement of its own, before requeue: only what that one sees
-- is as new as the locks, and no stage of these tasks dies or is requeued by others between the two.
select task_id
  from postroad.task
 where task_id in (select task_id from postroad.dead_letter where dead_letter_id = any (%(dead_letter_id)s::bigint[]))
 order by task_id
   for update
