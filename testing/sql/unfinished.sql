-- Tasks that are under way: open, or failed with a stage that will still run beside the dead one. No parameters.
-- Locks nothing. Reads all tasks: there are few in a test.
-- Returns task_id, the oldest five.
select task.task_id
  from postroad.task
 where task.status in ('pending', 'in_progress')
    or task.status = 'failed'
       and exists (select from postroad.stage
                    where stage.pipeline = task.pipeline
                      and stage.after <@ task.stages_done
                      and stage.stage <> all (task.stages_done)
                      and not exists (select from postroad.stage_run
                                       where stage_run.task_id = task.task_id and stage_run.stage = stage.stage
                                         and stage_run.status = 'dead'))
 order by task.task_id
 limit 5
