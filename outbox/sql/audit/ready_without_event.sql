-- Stages of open tasks that are ready to run, and no event asks for them. Only of tasks no older than the oldest event that
-- is kept: one that has waited for longer has none any more, and the sweep asks for it again.
with violation as (
    select task.task_id
      from postroad.task
      join postroad.stage using (pipeline)
     where task.status in ('pending', 'in_progress')
       and task.created_at >= (select min(occurred_at) from postroad.outbox)
       and stage.after <@ task.stages_done
       and stage.stage <> all (task.stages_done)
       and not exists (select from postroad.stage_run
                        where stage_run.task_id = task.task_id and stage_run.stage = stage.stage
                          and stage_run.status = 'dead')
       and not exists (select from postroad.outbox
                        where outbox.task_id = task.task_id
                          and (outbox.type = 'TaskCreated' and stage.after = '{}'
                               or outbox.type = 'StageCompleted' and stage.after = array[outbox.stage]
                               or outbox.type = 'StageRequested' and outbox.stage = stage.stage))
)
select (select count(*) from violation) as violations, array(select task_id from violation limit 5) as tasks
