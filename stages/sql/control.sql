-- What a worker must be told while it works: how its stages are set, and which of the tasks that it runs were cancelled.
-- Parameters: pipeline text[] and stage text[] of one length, task_id uuid[]. Leans on the primary keys.
-- Returns pipeline, stage, paused, rate, burst, max_running, rest (how much longer it rests, interval), trouble (why),
-- priorities of each stage; and task_id alone of each cancelled task.
select pipeline, stage, paused, rate, burst, max_running, resting_until - clock_timestamp() as rest, trouble,
       priorities, null::uuid as task_id
  from postroad.stage
  join postroad.pipeline using (pipeline)
 where (pipeline, stage) in (select * from unnest(%(pipeline)s::text[], %(stage)s::text[]))
union all
select null, null, null, null, null, null, null, null, null, task_id
  from postroad.task
 where task_id = any (%(task_id)s::uuid[]) and status = 'cancelled'
