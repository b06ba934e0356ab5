-- Drop the dead letters of stages that a pipeline no longer has; their tasks go on by the graph in force.
-- Parameter: pipeline text. Runs after record_stages and hold_dead, in their transaction. A task with another dead
-- stage stays failed. The caller then asks for what is ready, and completes what has nothing left to do.
with letter as (
    update postroad.dead_letter
       set resolved_at = now(), resolution = 'discarded', resolved_by = 'postroad deploy'
     where pipeline = %(pipeline)s
       and resolved_at is null
       and stage not in (select stage from postroad.stage where pipeline = %(pipeline)s)
    returning task_id, pipeline, stage
),
wiped as (
    delete from postroad.stage_run
     using letter
     where stage_run.task_id = letter.task_id and stage_run.stage = letter.stage
),
task_written as (
    update postroad.task
       set status = case when is_still_dead then 'failed' else 'in_progress' end,
           finished_at = case when is_still_dead then finished_at end,
           version = task.version + freed.times,
           updated_at = now()
      from (select letter.task_id, count(*)::int as times,
                   exists (select from postroad.stage_run as other
                            where other.task_id = letter.task_id and other.status = 'dead'
                              and other.stage <> all (array_agg(letter.stage))) as is_still_dead
              from letter
             group by letter.task_id) as freed
     where task.task_id = freed.task_id and task.status = 'failed'
    returning task.task_id, task.traceparent
)
insert into postroad.outbox (task_id, pipeline, type, stage, data, traceparent)
select task_id, pipeline, 'StageDropped', stage,
       '{"by": "postroad deploy", "reason": "the stage was removed"}', traceparent
  from letter
  join task_written using (task_id)
