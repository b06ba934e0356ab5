-- The graphs of all pipelines. Returns pipeline text, stage text, after text[].
-- Read after the ticks of the windows to be published: a task is accepted only into a pipeline that is there.
select pipeline, stage, after from postroad.stage order by pipeline, stage
