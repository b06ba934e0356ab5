-- Tasks that are ready to run a stage, and were so before a moment: by then an entry for each had been delivered.
-- Parameters: pipeline text, stage text, before timestamptz, "limit" int.
-- One that has waited for longer than events are kept has none any more, and is ready for as long.
-- A retry counts from when it is due, and so does a task that may not start before a time. Leans on task_unfinished, outbox_task and the primary keys. Returns task_id.
select task.task_id
  from postroad.task
  join postroad.stage on stage.pipeline = task.pipeline and stage.stage = %(stage)s
  left join lateral (
       select status, next_retry_at, worker
         from postroad.stage_run
        where stage_run.task_id = task.task_id and stage_run.stage = stage.stage
       ) as run on true
 where task.pipeline = %(pipeline)s
   and task.status not in ('completed', 'cancelled')
   and stage.after <@ task.stages_done
   and stage.stage <> all (task.stages_done)
   and not stage.paused
   and task.created_at < %(before)s
   and run.status is distinct from 'dead'
   and coalesce(greatest(run.next_retry_at, task.not_before), '-infinity') < %(before)s
   and coalesce(
           (select max(occurred_at)
              from postroad.outbox
             where outbox.task_id = task.task_id
               and (outbox.type in ('TaskCreated', 'StageCompleted')
                    or outbox.type = 'StageRequested' and outbox.stage = stage.stage)),
           '-infinity') < %(before)s
 order by task.created_at
 limit %(limit)s
