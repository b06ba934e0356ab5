-- Stages that are done, since the oldest event that is kept, or events that say so, without the other.
with violation as (
    select task_id
      from postroad.stage_run
     where status = 'done'
       and started_at >= (select min(occurred_at) from postroad.outbox)
       and not exists (select from postroad.outbox
                        where outbox.task_id = stage_run.task_id and outbox.stage = stage_run.stage
                          and outbox.type = 'StageCompleted')
    union all
    select task_id
      from postroad.outbox
     where type = 'StageCompleted'
       and not exists (select from postroad.stage_run
                        where stage_run.task_id = outbox.task_id and stage_run.stage = outbox.stage
                          and stage_run.status = 'done')
       and not exists (select from postroad.outbox as retried
                        where retried.task_id = outbox.task_id and retried.type = 'TaskRetried'
                          and retried.position > outbox.position and retried.data -> 'stages' ? outbox.stage)
)
select (select count(*) from violation) as violations, array(select task_id from violation limit 5) as tasks
