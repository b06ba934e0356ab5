-- Give dead letters another chance: their stages begin anew, with all their attempts.
-- Parameters: dead_letter_id bigint[], resolved_by text, on_behalf_of text and reason text (null: none given).
-- Of more than one an operation is recorded, which their events name.
-- The caller holds the tasks (hold_dead). Only unresolved letters of tasks that were not cancelled, and of stages that
-- are still in force.
-- A task with another dead stage stays failed until that is requeued too. A deadline that has passed is dropped: who
-- asks for another chance after it has decided. Returns task_id, stage of those requeued.
-- The caller then asks for the stages that are ready (ready_stages) in the same transaction.
with letter as (
    update postroad.dead_letter
       set resolved_at = now(), resolution = 'requeued', resolved_by = %(resolved_by)s
      from postroad.task
     where dead_letter.dead_letter_id = any (%(dead_letter_id)s::bigint[])
       and dead_letter.resolved_at is null
       and task.task_id = dead_letter.task_id
       and task.status = 'failed'
       and exists (select from postroad.stage
                    where stage.pipeline = dead_letter.pipeline and stage.stage = dead_letter.stage)
    returning dead_letter.task_id, dead_letter.pipeline, dead_letter.stage, dead_letter.reason, dead_letter.attempts
),
run as (
    update postroad.stage_run
       set status = 'failed', attempts = 0, next_retry_at = null, finished_at = null
      from letter
     where stage_run.task_id = letter.task_id and stage_run.stage = letter.stage
),
task_written as (
    update postroad.task
       set status = case when is_still_dead then 'failed' else 'in_progress' end,
           finished_at = case when is_still_dead then finished_at end,
           version = task.version + requeued.times,
           updated_at = now(),
           deadline = case when task.deadline > clock_timestamp() then task.deadline end
      from (select letter.task_id, count(*)::int as times,
                   exists (select from postroad.stage_run as other
                            where other.task_id = letter.task_id and other.status = 'dead'
                              and other.stage <> all (array_agg(letter.stage))) as is_still_dead
              from letter
             group by letter.task_id) as requeued
     where task.task_id = requeued.task_id
    returning task.task_id, task.traceparent, task.status
),
operation as (
    insert into postroad.operation (by, on_behalf_of, action, target, reason, after)
    select %(resolved_by)s, %(on_behalf_of)s, 'requeue', 'dead letters', %(reason)s,
           jsonb_build_object('letters', count(*), 'stages', jsonb_agg(distinct pipeline || '.' || stage))
      from letter
    having count(*) > 1
    returning operation_id
),
event as (
    insert into postroad.outbox (task_id, pipeline, type, stage, data, traceparent)
    select task_id, pipeline, 'StageRequeued', stage,
           jsonb_strip_nulls(jsonb_build_object(
               'by', %(resolved_by)s::text, 'on_behalf_of', %(on_behalf_of)s::text, 'reason', %(reason)s::text,
               'operation', (select operation_id from operation),
               'before', jsonb_build_object('status', 'failed', 'attempts', letter.attempts, 'reason', letter.reason),
               'after', jsonb_build_object('status', task_written.status, 'attempts', 0))), traceparent
      from letter
      join task_written using (task_id)
)
select task_id, stage from letter
