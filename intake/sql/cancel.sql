-- Cancel tasks that have not come to their end. Parameters: task_id uuid[], by text, on_behalf_of text and reason text (null:
-- none given).
-- The caller holds the tasks (hold). Their dead letters are discarded with them. An attempt that runs just now finds
-- another version when it commits, and changes nothing. Returns task_id of those that were cancelled.
with held as materialized (
    select task_id, pipeline, traceparent, status, stage_status
      from postroad.task
     where task_id = any (%(task_id)s::uuid[]) and status in ('pending', 'in_progress', 'failed')
),
task_written as (
    update postroad.task
       set status = 'cancelled', version = version + 1, updated_at = now(), finished_at = now()
      from held
     where task.task_id = held.task_id
),
letter_written as (
    update postroad.dead_letter
       set resolved_at = now(), resolution = 'discarded', resolved_by = %(by)s
      from held
     where dead_letter.task_id = held.task_id and resolved_at is null
),
event_written as (
    insert into postroad.outbox (task_id, pipeline, type, data, traceparent)
    select task_id, pipeline, 'TaskCancelled',
           jsonb_strip_nulls(jsonb_build_object(
               'by', %(by)s::text, 'on_behalf_of', %(on_behalf_of)s::text, 'reason', %(reason)s::text,
               'before', jsonb_build_object('status', status, 'stage_status', stage_status),
               'after', jsonb_build_object('status', 'cancelled'))), traceparent
      from held
)
select task_id from held
