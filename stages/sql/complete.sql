-- Complete the tasks that have nothing left to do by a graph that has just changed: a stage that they waited for was
-- removed. Parameter: pipeline text. Locks those tasks. Leans on task_unfinished. The row count says how many.
with completed as (
    update postroad.task
       set status = 'completed', version = version + 1, updated_at = now(), finished_at = now()
     where pipeline = %(pipeline)s
       and status in ('pending', 'in_progress')
       and not exists (select from postroad.stage
                        where stage.pipeline = task.pipeline and stage.stage <> all (task.stages_done))
    returning task_id, pipeline, traceparent
)
insert into postroad.outbox (task_id, pipeline, type, data, traceparent)
select task_id, pipeline, 'TaskCompleted', '{"reason": "deploy"}', traceparent from completed
