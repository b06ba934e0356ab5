-- What a worker must be told while it works: which of its stages are paused, and which of the tasks that it runs were
-- cancelled. Parameters: pipeline text[] and stage text[] of one length, task_id uuid[]. Leans on the primary keys.
-- Returns kind ('paused' or 'cancelled'), pipeline, stage, task_id.
select 'paused' as kind, pipeline, stage, null::uuid as task_id
  from postroad.stage
 where paused and (pipeline, stage) in (select * from unnest(%(pipeline)s::text[], %(stage)s::text[]))
union all
select 'cancelled', pipeline, null, task_id
  from postroad.task
 where task_id = any (%(task_id)s::uuid[]) and status = 'cancelled'
