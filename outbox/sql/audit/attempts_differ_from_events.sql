-- Stage runs with another number of attempts than the last event of that stage says. Requeueing begins anew. Only of tasks
-- no older than the oldest event that is kept.
with violation as (
    select run.task_id
      from postroad.stage_run as run
      join postroad.task using (task_id)
     cross join lateral (
           select type, data
             from postroad.outbox
            where outbox.task_id = run.task_id and outbox.stage = run.stage
              and type in ('StageCompleted', 'StageFailed', 'StageSnoozed', 'StageHanded', 'StageDead', 'StageRequeued')
            order by position desc
            limit 1
           ) as last
     where task.created_at >= (select min(occurred_at) from postroad.outbox)
       and run.attempts::text <> case last.type when 'StageRequeued' then '0' else last.data ->> 'attempt' end
)
select (select count(*) from violation) as violations, array(select task_id from violation limit 5) as tasks
