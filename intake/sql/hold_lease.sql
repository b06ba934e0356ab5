-- Hold the task of a lease until the transaction ends. Parameter: lease bytea. Leans on stage_run_lease. In a statement
-- of its own, before those that read and write: only what they see is as new as the lock.
select task.task_id
  from postroad.stage_run as run
  join postroad.task using (task_id)
 where run.lease = %(lease)s
   for update of task
