-- The service behind a stage answers again: let all begin. Parameters: pipeline text, stage text.
update postroad.stage
   set resting_until = null, rests = 0, trouble = null
 where pipeline = %(pipeline)s and stage = %(stage)s and resting_until is not null
