-- Work that is tried again and again, or whose retry is due and does not come, among the oldest open tasks of each pipeline.
-- Parameters: "limit" int (tasks of a pipeline that are looked at), attempts int (failures from which it counts), late interval
-- (a retry that has been due for longer counts), old interval (a task that still asks to be called again, and is older, counts).
-- Leans on task_unfinished and the primary keys. Returns pipeline, stage, often, late and snoozing bigint (how many), attempts int
-- (the most).
select run.pipeline, run.stage,
       count(*) filter (where is_often) as often,
       count(*) filter (where is_late) as late,
       count(*) filter (where is_snoozing) as snoozing,
       max(run.attempts)::int as attempts
  from postroad.pipeline
 cross join lateral (
       select task_id, created_at, not_before
         from postroad.task
        where task.pipeline = pipeline.pipeline
          and task.status not in ('completed', 'cancelled') and task.status <> 'failed'
        order by task.created_at
        limit %(limit)s) as task
 cross join lateral (
       select pipeline.pipeline, stage, attempts,
              status = 'failed' and attempts >= %(attempts)s as is_often,
              status in ('failed', 'snoozed') and next_retry_at < clock_timestamp() - %(late)s::interval as is_late,
              status = 'snoozed' and coalesce(task.not_before, task.created_at) < clock_timestamp() - %(old)s::interval
                  and next_retry_at < clock_timestamp() + interval '1 hour' as is_snoozing
         from postroad.stage_run
        where stage_run.task_id = task.task_id and status in ('failed', 'snoozed')
        offset 0) as run
 where is_often or is_late or is_snoozing
 group by run.pipeline, run.stage
 order by 1, 2
