-- What a worker must know to run one stage of each of several tasks.
-- Parameters: pipeline text, stage text, task_id uuid[]. Locks nothing. Leans on the primary keys, by laterals that the
-- planner cannot turn into a join of whole tables. No row for a task that is gone or a stage that is not deployed.
-- Returns for each: task_id, version, payload, labels, created_at, traceparent; is_open (there is something to do),
-- is_ready (all stages before are done); of the latest outcome: attempts, wait (until a retry, or the task, is due,
-- interval), worker, started_at; results (of the stages that are done, by stage); and, only if the task has a deadline:
-- deadline, time_left (until then, interval; negative afterwards), last_error (of this stage). is_handed: a service is
-- to report, or has reported answer. due: when the retry, or the task, was or is due (null: no date holds it).
-- is_requeued: it was a dead letter, and has had no outcome since.
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
       greatest(run.next_retry_at - clock_timestamp(), task.not_before - clock_timestamp(), interval '0') as wait,
       greatest(run.next_retry_at, task.not_before) as due,
       run.worker,
       run.started_at,
       case when task.stages_done <> '{}' then
           (select jsonb_object_agg(done.stage, done.result)
              from postroad.stage_run as done
             where done.task_id = task.task_id and done.status = 'done')
       end as results,
       coalesce(run.status = 'waiting', false) as is_handed,
       case when run.status = 'waiting' then run.answer end as answer,
       task.deadline,
       task.deadline - clock_timestamp() as time_left,
       case when task.deadline is not null then run.error end as last_error,
       coalesce(run.status = 'failed' and run.attempts = 0, false) as is_requeued
  from unnest(%(task_id)s::uuid[]) as wanted (task_id)
 cross join postroad.stage
 cross join lateral (
       select * from postroad.task where task.task_id = wanted.task_id and task.pipeline = stage.pipeline offset 0
       ) as task
  left join lateral (
       select * from postroad.stage_run where stage_run.task_id = wanted.task_id and stage_run.stage = stage.stage
       offset 0
       ) as run on true
 where stage.pipeline = %(pipeline)s
   and stage.stage = %(stage)s
