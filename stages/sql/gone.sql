-- Pause a stage whose service says that it is gone for good. Parameters: pipeline text, stage text, trouble text (why).
-- Returns a row if it was not paused.
with gone as (
    update postroad.stage
       set paused = true, trouble = %(trouble)s, resting_until = null, rests = 0, switched_by = null, switched_at = now()
     where pipeline = %(pipeline)s and stage = %(stage)s and not paused
    returning pipeline, stage
)
insert into postroad.operation (by, action, target, pipeline, reason, before, after)
select 'postroad stage', 'pause', pipeline || '.' || stage, pipeline, %(trouble)s, '{"paused": false}', '{"paused": true}'
  from gone
returning true
