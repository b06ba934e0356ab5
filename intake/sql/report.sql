-- Keep what a service reports of work that was handed to it, and ask for the stage, whose worker will commit it.
-- Parameters: lease bytea (SHA-256 of its token), answer jsonb as text.
-- Only while the lease holds: the latest of its stage, its time not up or nobody has taken the work since, the task
-- neither completed nor cancelled, and nothing reported yet. The caller holds the task (hold_lease).
-- Returns task_id, stage; no row otherwise.
with reported as (
    update postroad.stage_run as run
       set answer = %(answer)s::jsonb, next_retry_at = null
      from postroad.task
     where run.lease = %(lease)s
       and run.status = 'waiting'
       and run.answer is null
       and task.task_id = run.task_id
       and task.status not in ('completed', 'cancelled')
    returning run.task_id, run.stage, task.pipeline, task.traceparent, task.priority
),
task_written as (
    update postroad.task
       set version = version + 1, updated_at = now()
      from reported
     where task.task_id = reported.task_id
),
event_written as (
    insert into postroad.outbox (task_id, pipeline, type, stage, data, traceparent, priority)
    select task_id, pipeline, event.type, stage, event.data, traceparent, priority
      from reported
     cross join (values (1, 'StageReported', jsonb_build_object('outcome', %(answer)s::jsonb ->> 'outcome')),
                        (2, 'StageRequested', jsonb_build_object('reason', 'reported'))) as event (place, type, data)
     order by event.place
)
select task_id, stage from reported
