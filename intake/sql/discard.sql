-- Resolve dead letters without another try: their tasks stay failed. Parameters: dead_letter_id bigint[], by text,
-- on_behalf_of text and reason text (null: none given).
-- Locks the letters. Returns task_id, stage of those discarded.
with letter as (
    update postroad.dead_letter
       set resolved_at = now(), resolution = 'discarded', resolved_by = %(by)s
     where dead_letter_id = any (%(dead_letter_id)s::bigint[]) and resolved_at is null
    returning task_id, pipeline, stage
),
event_written as (
    insert into postroad.outbox (task_id, pipeline, type, stage, data)
    select task_id, pipeline, 'DeadLetterDiscarded', stage,
           jsonb_strip_nulls(jsonb_build_object(
               'by', %(by)s::text, 'on_behalf_of', %(on_behalf_of)s::text, 'reason', %(reason)s::text))
      from letter
)
select task_id, stage from letter
