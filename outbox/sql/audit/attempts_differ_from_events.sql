-- Stage runs with another number of attempts than the last event of that stage says. Requeueing begins anew. Only of tasks
-- no older than the oldest event that is kept.
with last as (
    select distinct on (task_id, stage) task_id, stage,
           case type when 'StageRequeued' then '0' else data ->> 'attempt' end as attempts
      from postroad.outbox
     where type in ('StageCompleted', 'StageFailed', 'StageSnoozed', 'StageHanded', 'StageDead', 'StageRequeued')
     order by task_id, stage, position desc
),
violation as (
    select task_id
      from last
      join postroad.stage_run as run using (task_id, stage)
      join postroad.task using (task_id)
     where task.created_at >= (select min(occurred_at) from postroad.outbox)
       and run.attempts::text <> last.attempts
)
select (select count(*) from violation) as violations, array(select task_id from violation limit 5) as tasks
