-- Hold the tasks of these dead letters until the transaction ends, as hold does. Parameter: dead_letter_id bigint[].
select task_id
  from postroad.task
 where task_id in (select task_id from postroad.dead_letter where dead_letter_id = any (%(dead_letter_id)s::bigint[]))
 order by task_id
   for update
