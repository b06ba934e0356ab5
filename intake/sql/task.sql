-- One task with its stage runs. Parameter: task_id uuid. Leans on the primary keys.
-- Returns task_id, pipeline, priority (in words), status, stage_status, stages_done, retry_count, version, payload, labels,
-- trace_id, created_at, updated_at, finished_at, not_before, deadline, submitted_by, stages (json array by start of their
-- last attempt); no row if there is none.
select task.task_id, task.pipeline, (array['low', 'normal', 'high'])[task.priority + 1] as priority, task.status,
       task.stage_status, task.stages_done, task.retry_count, task.version,
       task.payload, task.labels, task.trace_id, task.created_at, task.updated_at, task.finished_at,
       task.not_before, task.deadline, task.submitted_by,
       coalesce(
           (select jsonb_agg(
                       jsonb_build_object(
                           'stage', run.stage, 'status', run.status, 'attempts', run.attempts, 'result', run.result,
                           'error', run.error, 'next_retry_at', run.next_retry_at, 'worker', run.worker,
                           'started_at', run.started_at, 'finished_at', run.finished_at)
                       order by run.started_at, run.stage)
              from postroad.stage_run as run
             where run.task_id = task.task_id),
           '[]') as stages
  from postroad.task
 where task.task_id = %(task_id)s
