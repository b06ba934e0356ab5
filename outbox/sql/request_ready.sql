-- Append StageRequested for every (task, stage) that is ready to run: the task neither completed nor cancelled, all
-- stages before it done, itself neither done nor dead. A repeat is harmless: what is done meanwhile does not run again.
-- Parameters: pipeline text[] and stage text[] of one length (null: all stages), task_id uuid[] (null: all tasks),
-- priority smallint (null: tasks of any), reason text. Leans on task_unfinished. In the transaction of the caller; the
-- row count is how many were asked for.
insert into postroad.outbox (task_id, pipeline, type, stage, data, traceparent, priority)
select task.task_id, task.pipeline, 'StageRequested', stage.stage,
       jsonb_build_object('reason', %(reason)s::text), task.traceparent, task.priority
  from postroad.task
  join postroad.stage using (pipeline)
 where task.status not in ('completed', 'cancelled')
   and stage.after <@ task.stages_done
   and stage.stage <> all (task.stages_done)
   and (%(stage)s::text[] is null
        or (stage.pipeline, stage.stage) in (select * from unnest(%(pipeline)s::text[], %(stage)s::text[])))
   and (%(task_id)s::uuid[] is null or task.task_id = any (%(task_id)s::uuid[]))
   and (%(priority)s::smallint is null or task.priority = %(priority)s::smallint)
   and not exists (select from postroad.stage_run as run
                    where run.task_id = task.task_id and run.stage = stage.stage and run.status = 'dead')
 order by task.created_at, task.task_id
