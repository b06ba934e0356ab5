-- What has become of work that was handed to a service. Parameter: lease bytea. Leans on stage_run_lease.
-- Returns task_id, stage, task_status, status (of the stage run), outcome (what was reported by this lease, null:
-- nothing); no row if no such lease was given, or the work was handed out anew since.
select run.task_id, run.stage, task.status as task_status, run.status, run.answer ->> 'outcome' as outcome
  from postroad.stage_run as run
  join postroad.task using (task_id)
 where run.lease = %(lease)s
