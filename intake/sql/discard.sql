-- Resolve dead letters without another try: their tasks stay failed. Parameters: dead_letter_id bigint[], by text,
-- on_behalf_of text and reason text (null: none given).
-- Of more than one an operation is recorded, which their events name. Locks the letters. Returns task_id, stage of those discarded.
with letter as (
    update postroad.dead_letter
       set resolved_at = now(), resolution = 'discarded', resolved_by = %(by)s
     where dead_letter_id = any (%(dead_letter_id)s::bigint[]) and resolved_at is null
    returning task_id, pipeline, stage, reason, attempts
),
operation as (
    insert into postroad.operation (by, on_behalf_of, action, target, reason, after)
    select %(by)s, %(on_behalf_of)s, 'discard', 'dead letters', %(reason)s,
           jsonb_build_object('letters', count(*), 'stages', jsonb_agg(distinct pipeline || '.' || stage))
      from letter
    having count(*) > 1
    returning operation_id
),
event_written as (
    insert into postroad.outbox (task_id, pipeline, type, stage, data)
    select task_id, pipeline, 'DeadLetterDiscarded', stage,
           jsonb_strip_nulls(jsonb_build_object(
               'by', %(by)s::text, 'on_behalf_of', %(on_behalf_of)s::text, 'reason', %(reason)s::text,
               'operation', (select operation_id from operation),
               'before', jsonb_build_object('attempts', attempts, 'reason', reason),
               'after', jsonb_build_object('resolution', 'discarded')))
      from letter
)
select task_id, stage from letter
