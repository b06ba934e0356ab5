-- One task, and of each stage that is not done what holds it up, as far as Postgres knows. Parameter: task_id uuid.
-- Leans on the primary keys, outbox_task and dead_letter_unresolved.
-- Returns a row for each stage that is to be done, or one without a stage, in the order of the graph; none if there is no such
-- task. Of the task: pipeline, status, priority, finished_at, ended_by and ended_because (of who cancelled it). Of the
-- stage, as in the view open_work: stage, state, since, until, attempts, worker, reason, waits_for; besides
-- is_reported (its service has reported), resolved_by (who discarded its dead letter); paused, switched_by,
-- switched_at, switched_because, trouble, resting_until; rate, burst, max_running (that hold), has_lanes; position, xid text
-- and asked_at of the event that asked for it last; workers and running (how many of its processes live, and what they
-- run), workers_seen_at (when the last one was). Of the relay: is_relayed (one works), relay_seen_at.
with work as materialized (
    select * from postroad.open_work where task_id = %(task_id)s
),
alive as materialized (
    select * from postroad.processes where state = 'alive'
)
select task.pipeline, task.status, task.priority, task.finished_at,
       cancelled.data ->> 'by' as ended_by, cancelled.data ->> 'reason' as ended_because,
       work.stage, work.state, work.since, work.until, work.attempts, work.worker, work.reason, work.waits_for,
       coalesce(run.status = 'waiting' and run.answer is not null, false) as is_reported,
       case when work.state = 'discarded' then
           (select resolved_by from postroad.dead_letter
             where dead_letter.task_id = task.task_id and dead_letter.stage = work.stage
             order by dead_letter_id desc limit 1)
       end as resolved_by,
       coalesce(stage.paused, false) as paused, stage.switched_by, stage.switched_at,
       case when stage.paused then
           (select operation.reason from postroad.operation
             where operation.action = 'pause' and operation.target = stage.pipeline || '.' || stage.stage
             order by at desc limit 1)
       end as switched_because,
       stage.trouble, stage.resting_until,
       case when stage.rate = 'off' then null else coalesce(stage.rate, coded.definition ->> 'rate') end as rate,
       case when stage.rate is null then coalesce(stage.burst, (coded.definition ->> 'burst')::int)
            else stage.burst end as burst,
       coalesce(stage.max_running, (coded.definition ->> 'max_running')::int) as max_running,
       pipeline.priorities as has_lanes,
       asked.position, asked.xid::text as xid, asked.occurred_at as asked_at,
       (select count(*) from alive where alive.stages @> array[stage.pipeline || '.' || stage.stage]) as workers,
       (select count(*)
          from postroad.process
          join alive using (process)
         cross join jsonb_to_recordset(process.running) as attempt (stage text)
        where process.stages @> array[stage.pipeline || '.' || stage.stage] and attempt.stage = stage.stage) as running,
       (select max(coalesce(stopped_at, seen_at)) from postroad.process
         where process.stages @> array[stage.pipeline || '.' || stage.stage]) as workers_seen_at,
       exists (select from alive where is_leading) as is_relayed,
       (select max(coalesce(stopped_at, seen_at)) from postroad.process where role = 'relay') as relay_seen_at
  from postroad.task
  join postroad.pipeline using (pipeline)
  left join work on work.task_id = task.task_id
  left join postroad.stage on stage.pipeline = task.pipeline and stage.stage = work.stage
  left join postroad.stage_run as run on run.task_id = task.task_id and run.stage = work.stage
  left join jsonb_array_elements(pipeline.definition -> 'stages') with ordinality as coded (definition, place)
         on coded.definition ->> 'stage' = work.stage
  left join lateral (
       select position, xid, occurred_at
         from postroad.outbox
        where outbox.task_id = task.task_id
          and (outbox.type = 'TaskCreated' and stage.after = '{}'
               or outbox.type = 'StageCompleted' and stage.after = array[outbox.stage]
               or outbox.type = 'StageRequested' and outbox.stage = stage.stage)
        order by position desc
        limit 1
       ) as asked on work.stage is not null
  left join lateral (
       select data
         from postroad.outbox
        where outbox.task_id = task.task_id and outbox.type = 'TaskCancelled' and task.status = 'cancelled'
        order by position desc
        limit 1
       ) as cancelled on true
 where task.task_id = %(task_id)s
 order by coded.place
