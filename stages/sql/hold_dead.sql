-- Hold the tasks that drop_dead changes until the transaction ends, in the order in which commits hold theirs.
-- Parameter: pipeline text. In a statement of its own, so that drop_dead sees what was committed before the lock.
select task_id
  from postroad.task
 where task_id in (select task_id
                     from postroad.dead_letter
                    where pipeline = %(pipeline)s
                      and resolved_at is null
                      and stage not in (select stage from postroad.stage where pipeline = %(pipeline)s))
 order by task_id
   for update
