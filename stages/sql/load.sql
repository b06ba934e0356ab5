-- What a worker must know to run one stage of each of several tasks.
-- Parameters: stage text, task_id uuid[]. Locks nothing. Leans on the primary keys. No row for a task that is gone, or
-- whose pipeline has no such stage. Returns for each: task_id, version, payload, labels, created_at, traceparent;
-- is_open (there is something to do), is_ready (all stages before are done), attempts, wait (until a retry is due,
-- interval), results (of the stages that are done, by stage).
select task.task_id,
       task.version,
       task.payload,
       task.labels,
       task.created_at,
       task.traceparent,
       task.status not in ('completed', 'cancelled')
           and stage.stage <> all (task.stages_done)
           and run.status is distinct from 'dead' as is_open,
       stage.after <@ task.stages_done as is_ready,
       coalesce(run.attempts, 0) as attempts,
       greatest(run.next_retry_at - clock_timestamp(), interval '0') as wait,
       case when task.stages_done <> '{}' then
           (select jsonb_object_agg(done.stage, done.result)
              from postroad.stage_run as done
             where done.task_id = task.task_id and done.status = 'done')
       end as results
  from postroad.task
  join postroad.stage on stage.pipeline = task.pipeline and stage.stage = %(stage)s
  left join postroad.stage_run as run on run.task_id = task.task_id and run.stage = stage.stage
 where task.task_id = any (%(task_id)s::uuid[])
   and task.pipeline = %(pipeline)s
