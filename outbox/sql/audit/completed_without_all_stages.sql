-- Completed tasks with a stage of their pipeline that is not done. Those that completed before a changed graph came into
-- force went by the one before, and so may those of the first minutes after, in commits that were under way.
with violation as (
    select task_id
      from postroad.task
      join postroad.pipeline using (pipeline)
     where status = 'completed'
       and (pipeline.version = 1 or task.finished_at > pipeline.deployed_at + interval '5 minutes')
       and exists (select from postroad.stage
                    where stage.pipeline = task.pipeline and stage.stage <> all (task.stages_done))
)
select (select count(*) from violation) as violations, array(select task_id from violation limit 5) as tasks
