-- Run a stage of one task again, and every stage that comes after it, as if they had never run.
-- Parameters: task_id uuid, stage text, by text, on_behalf_of text and reason text (null: none given).
-- The caller holds the task (hold). Not for a cancelled task. Their dead letters are resolved. Returns the stages
-- (text[]) that will run again; a deadline that has passed is dropped; no row if the task is not there or is cancelled, or its pipeline has no such stage.
-- The caller then asks for the stages that are ready (ready_stages) in the same transaction.
with recursive held as materialized (
    select task_id, pipeline, traceparent, status, stage_status, stages_done
      from postroad.task
     where task_id = %(task_id)s and status <> 'cancelled'
),
again as (
    select stage.stage
      from held
      join postroad.stage using (pipeline)
     where stage.stage = %(stage)s
    union
    select next.stage
      from held
      join postroad.stage as next using (pipeline)
      join again on again.stage = any (next.after)
),
wiped as (
    delete from postroad.stage_run
     using held
     where stage_run.task_id = held.task_id and stage_run.stage in (select stage from again)
),
letter_written as (
    update postroad.dead_letter
       set resolved_at = now(), resolution = 'requeued', resolved_by = %(by)s
      from held
     where dead_letter.task_id = held.task_id and resolved_at is null
       and dead_letter.stage in (select stage from again)
),
still_dead as (
    select exists (select from postroad.stage_run
                    where stage_run.task_id = held.task_id and status = 'dead'
                      and stage not in (select stage from again)) as is_still_dead
      from held
),
task_written as (
    update postroad.task
       set status = case when is_still_dead then 'failed' else 'in_progress' end,
           finished_at = case when is_still_dead then task.finished_at end,
           stages_done = array(select done from unnest(task.stages_done) as done
                                where done not in (select stage from again)),
           stage_status = 'retried_from:' || %(stage)s,
           version = version + 1,
           updated_at = now(),
           deadline = case when task.deadline > clock_timestamp() then task.deadline end
      from held, still_dead
     where task.task_id = held.task_id and exists (select from again)
    returning task.status, task.stage_status, task.stages_done
),
event_written as (
    insert into postroad.outbox (task_id, pipeline, type, stage, data, traceparent)
    select task_id, pipeline, 'TaskRetried', %(stage)s,
           jsonb_strip_nulls(jsonb_build_object(
               'by', %(by)s::text, 'on_behalf_of', %(on_behalf_of)s::text, 'reason', %(reason)s::text,
               'stages', (select jsonb_agg(stage) from again),
               'before', jsonb_build_object(
                   'status', held.status, 'stage_status', held.stage_status, 'stages_done', held.stages_done),
               'after', (select to_jsonb(task_written) from task_written))),
           traceparent
      from held
     where exists (select from again)
)
select array_agg(stage) as stages from again having count(*) > 0
