-- The pipelines in force, and what is at each of their stages. Parameters: pipeline text[] (null: all), most int: so many of
-- the oldest open tasks of a pipeline are looked at, and so many of the dead letters of a stage.
-- Failed tasks are not among the open ones, though their other stages may run.
-- Leans on task_unfinished, dead_letter_fingerprint and the primary keys. Returns a row for each stage, in the order in
-- which they can run: pipeline, version, deployed_at, priorities; stage, after, paused, resting_until, trouble, rate, burst,
-- max_running; seen (how many open tasks were looked at: more than most if there are more), ready, retrying, waiting,
-- scheduled, dead bigint, oldest_ready double precision (seconds since the one that has been ready for longest became it).
with stage as materialized (
    select stage.pipeline, pipeline.version, pipeline.deployed_at, pipeline.priorities, coded.place,
           stage.stage, stage.after, stage.paused, stage.resting_until, stage.trouble,
           case when stage.rate = 'off' then null else coalesce(stage.rate, coded.definition ->> 'rate') end as rate,
           case when stage.rate is null then coalesce(stage.burst, (coded.definition ->> 'burst')::int)
                else stage.burst end as burst,
           coalesce(stage.max_running, (coded.definition ->> 'max_running')::int) as max_running
      from postroad.pipeline
     cross join jsonb_array_elements(pipeline.definition -> 'stages') with ordinality as coded (definition, place)
      join postroad.stage on stage.pipeline = pipeline.pipeline and stage.stage = coded.definition ->> 'stage'
     where %(pipeline)s::text[] is null or pipeline.pipeline = any (%(pipeline)s::text[])
),
open as materialized (
    select pipeline.pipeline, task.*, row_number() over (partition by pipeline.pipeline order by task.created_at) as place
      from (select distinct pipeline from stage) as pipeline
     cross join lateral (
           select task_id, created_at, not_before, stages_done
             from postroad.task
            where task.pipeline = pipeline.pipeline
              and task.status not in ('completed', 'cancelled') and task.status <> 'failed'
            order by task.created_at
            limit %(most)s + 1
           ) as task
),
seen as (
    select pipeline, count(*) as tasks from open group by pipeline
),
at_stage as (
    select stage.pipeline, stage.stage, run.status, coalesce(open.not_before > now(), false) as is_early,
           -- When the last of the stages before it was done, or the task could start.
           greatest(open.created_at, open.not_before,
                    (select max(finished_at)
                       from postroad.stage_run as before
                      where before.task_id = open.task_id and before.stage = any (stage.after))) as since
      from open
      join stage on stage.pipeline = open.pipeline
                and stage.after <@ open.stages_done and stage.stage <> all (open.stages_done)
      left join lateral (
           select status from postroad.stage_run where stage_run.task_id = open.task_id and stage_run.stage = stage.stage
           ) as run on true
     where open.place <= %(most)s
),
depth as (
    select pipeline, stage,
           count(*) filter (where status is null and not is_early) as ready,
           count(*) filter (where status in ('failed', 'snoozed')) as retrying,
           count(*) filter (where status = 'waiting') as waiting,
           count(*) filter (where status is null and is_early) as scheduled,
           extract(epoch from clock_timestamp() - min(since) filter (where status is null and not is_early)) as oldest
      from at_stage
     group by pipeline, stage
)
select stage.pipeline, stage.version, stage.deployed_at, stage.priorities,
       stage.stage, stage.after, stage.paused, stage.resting_until, stage.trouble, stage.rate, stage.burst,
       stage.max_running, coalesce(seen.tasks, 0) as seen,
       coalesce(depth.ready, 0) as ready, coalesce(depth.retrying, 0) as retrying, coalesce(depth.waiting, 0) as waiting,
       coalesce(depth.scheduled, 0) as scheduled, letters.dead,
       depth.oldest::double precision as oldest_ready
  from stage
  left join seen on seen.pipeline = stage.pipeline
  left join depth on depth.pipeline = stage.pipeline and depth.stage = stage.stage
 cross join lateral (
       select count(*) as dead
         from (select from postroad.dead_letter as letter
                where letter.resolved_at is null and letter.pipeline = stage.pipeline and letter.stage = stage.stage
                limit %(most)s + 1) as letter
       ) as letters
 order by stage.pipeline, stage.place
