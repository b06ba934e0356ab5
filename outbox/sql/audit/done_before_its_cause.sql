-- Stages that were done before one that they wait for, by the graph in force: once for each of those. Only of tasks no
-- older than the oldest event that is kept. What happened before a changed graph came into force went by the one
-- before, and so may what happened in the first minutes after, in commits that were under way.
with violation as (
    select done.task_id
      from postroad.outbox as done
      join postroad.task using (task_id)
      join postroad.pipeline on pipeline.pipeline = task.pipeline
      join postroad.stage on stage.pipeline = task.pipeline and stage.stage = done.stage
     cross join unnest(stage.after) as cause (stage)
     where done.type = 'StageCompleted'
       and task.created_at >= (select min(occurred_at) from postroad.outbox)
       and (pipeline.version = 1 or done.occurred_at > pipeline.deployed_at + interval '5 minutes')
       and not exists (select from postroad.outbox as before
                        where before.task_id = done.task_id and before.stage = cause.stage
                          and before.type = 'StageCompleted' and before.position < done.position)
)
select (select count(*) from violation) as violations, array(select task_id from violation limit 5) as tasks
