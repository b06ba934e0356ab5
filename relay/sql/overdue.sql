-- Tasks that are ready to run a stage, and were so before a moment: by then an entry for each had been delivered.
-- Parameters: pipeline text, stage text, before timestamptz[] (the moment for each priority, the lowest first; null:
-- none of these), latest timestamptz of them, "limit" int.
-- One that has waited for longer than events are kept has none any more, and is ready for as long.
-- A retry counts from when it is due, and so does a task that may not start before a time. Leans on task_unfinished,
-- outbox_task and the primary keys. Returns task_id.
select task.task_id
  from postroad.task
  join postroad.stage on stage.pipeline = task.pipeline and stage.stage = %(stage)s
  left join lateral (
       select status, next_retry_at, worker
         from postroad.stage_run
        where stage_run.task_id = task.task_id and stage_run.stage = stage.stage
       ) as run on true
 cross join lateral (select (%(before)s::timestamptz[])[task.priority + 1] as before) as lane
 where task.pipeline = %(pipeline)s
   and task.status not in ('completed', 'cancelled')
   and stage.after <@ task.stages_done
   and stage.stage <> all (task.stages_done)
   and not stage.paused
   and task.created_at < %(latest)s
   and task.created_at < lane.before
   and run.status is distinct from 'dead'
   and coalesce(greatest(run.next_retry_at, task.not_before), '-infinity') < lane.before
   and coalesce(
           (select max(occurred_at)
              from postroad.outbox
             where outbox.task_id = task.task_id
               and (outbox.type in ('TaskCreated', 'StageCompleted')
                    or outbox.type = 'StageRequested' and outbox.stage = stage.stage)),
           '-infinity') < lane.before
 order by task.created_at
 limit %(limit)s
