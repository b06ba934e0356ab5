-- The graphs of all pipelines. Returns pipeline text, stage text, after text[], priorities boolean.
-- Read after the ticks of the windows to be published: a task is accepted only into a pipeline that is there.
select pipeline, stage, after, priorities
  from postroad.stage
  join postroad.pipeline using (pipeline)
 order by pipeline, stage
