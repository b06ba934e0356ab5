-- One task as its page shows it. Parameters: task_id uuid, most int: characters of the payload at most. The payload is
-- Postgres' own text of it, in which no number is rounded. Leans on the primary keys.
-- Returns task_id, pipeline, priority (in words), status, stage_status, stages_done, retry_count, version, labels,
-- trace_id, created_at, updated_at, finished_at, not_before, deadline, submitted_by, payload text, payload_size int
-- (characters in all), looked_at; and graph jsonb: the stages of its pipeline, each with those
-- before it, in their order. No row if there is none.
select task.task_id, task.pipeline, (array['low', 'normal', 'high'])[task.priority + 1] as priority, task.status,
       task.stage_status, task.stages_done, task.retry_count, task.version, task.labels, task.trace_id,
       task.created_at, task.updated_at, task.finished_at, task.not_before, task.deadline, task.submitted_by,
       clock_timestamp() as looked_at, left(written.payload, %(most)s) as payload, length(written.payload) as payload_size,
       (select jsonb_agg(jsonb_build_array(coded.definition ->> 'stage', stage.after) order by coded.place)
          from postroad.pipeline
         cross join jsonb_array_elements(pipeline.definition -> 'stages') with ordinality as coded (definition, place)
          join postroad.stage on stage.pipeline = pipeline.pipeline and stage.stage = coded.definition ->> 'stage'
         where pipeline.pipeline = task.pipeline) as graph
  from postroad.task
 cross join lateral (select jsonb_pretty(task.payload) as payload) as written
 where task.task_id = %(task_id)s
