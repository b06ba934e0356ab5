-- Pause or resume a stage. Parameters: pipeline text, stage text, paused boolean, by text (who asks). Its workers hear of it within a second.
-- One that is resumed rests no longer either: somebody has seen to its service.
-- Returns was_paused boolean; no row if there is no such stage.
update postroad.stage
   set paused = %(paused)s,
       switched_by = case when paused = %(paused)s then switched_by else %(by)s end,
       switched_at = case when paused = %(paused)s then switched_at else now() end,
       trouble = case when %(paused)s then stage.trouble end,
       resting_until = case when %(paused)s then stage.resting_until end,
       rests = case when %(paused)s then stage.rests else 0 end
  from (select pipeline, stage, paused as was_paused
          from postroad.stage
         where pipeline = %(pipeline)s and stage = %(stage)s
           for update) as before
 where stage.pipeline = before.pipeline and stage.stage = before.stage
returning was_paused
