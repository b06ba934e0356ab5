-- The stages in force, with the limits that hold: those that people have set, else those of the code that was deployed.
-- Parameters: pipeline text (null: all). Returns pipeline, stage, after, paused, rate, burst, max_running, limits_set
-- boolean (true: people have set some), resting_until (while its service is away; past: one attempt is let through to
-- see), trouble (why it rests, or was paused by itself), priorities boolean, in the order in which stages can run.
select stage.pipeline, stage.stage, stage.after, stage.paused,
       case when stage.rate = 'off' then null else coalesce(stage.rate, coded.definition ->> 'rate') end as rate,
       case when stage.rate is null then coalesce(stage.burst, (coded.definition ->> 'burst')::int)
            else stage.burst end as burst,
       coalesce(stage.max_running, (coded.definition ->> 'max_running')::int) as max_running,
       num_nonnulls(stage.rate, stage.burst, stage.max_running) > 0 as limits_set,
       stage.resting_until, stage.trouble, pipeline.priorities
  from postroad.pipeline
 cross join jsonb_array_elements(pipeline.definition -> 'stages') with ordinality as coded (definition, place)
  join postroad.stage on stage.pipeline = pipeline.pipeline and stage.stage = coded.definition ->> 'stage'
 where %(pipeline)s::text is null or pipeline.pipeline = %(pipeline)s
 order by stage.pipeline, coded.place
