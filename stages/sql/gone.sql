-- Pause a stage whose service says that it is gone for good. Parameters: pipeline text, stage text, trouble text (why).
-- Returns a row if it was not paused.
update postroad.stage
   set paused = true, trouble = %(trouble)s, resting_until = null, rests = 0
 where pipeline = %(pipeline)s and stage = %(stage)s and not paused
returning true
