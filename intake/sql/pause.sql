-- Pause or resume a stage. Parameters: pipeline text, stage text, paused boolean. Its workers hear of it within a second.
-- Returns was_paused boolean; no row if there is no such stage.
update postroad.stage
   set paused = %(paused)s
  from (select pipeline, stage, paused as was_paused
          from postroad.stage
         where pipeline = %(pipeline)s and stage = %(stage)s
           for update) as before
 where stage.pipeline = before.pipeline and stage.stage = before.stage
returning was_paused
