-- Open tasks with no stage that is ready: nothing will ever move them.
with violation as (
    select task_id
      from postroad.task
     where status in ('pending', 'in_progress')
       and not exists (select from postroad.stage
                        where stage.pipeline = task.pipeline
                          and stage.after <@ task.stages_done
                          and stage.stage <> all (task.stages_done)
                          and not exists (select from postroad.stage_run
                                           where stage_run.task_id = task.task_id and stage_run.stage = stage.stage
                                             and stage_run.status = 'dead'))
)
select (select count(*) from violation) as violations, array(select task_id from violation limit 5) as tasks
