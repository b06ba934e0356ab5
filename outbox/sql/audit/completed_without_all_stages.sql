-- Completed tasks with a stage of their pipeline that is not done.
select count(*)
  from postroad.task
 where status = 'completed'
   and exists (select from postroad.stage
                where stage.pipeline = task.pipeline and stage.stage <> all (task.stages_done))
