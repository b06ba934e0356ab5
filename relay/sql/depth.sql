-- What is at each stage in force. Parameters: most int: so many of the oldest open tasks of a pipeline are looked at, and
-- so many of the dead letters of a stage. Locks nothing. Leans on task_unfinished, dead_letter_fingerprint and the
-- primary keys. Failed tasks are not among the open ones, though their other stages may run.
-- Returns a row for each stage: pipeline, stage, paused, resting boolean; ready, retrying, waiting, scheduled, dead bigint;
-- oldest_ready, oldest_dead double precision (seconds; null: there is none).
with open as materialized (
    select pipeline.pipeline, task.task_id, task.created_at, task.not_before, task.stages_done
      from postroad.pipeline
     cross join lateral (
           select task_id, created_at, not_before, stages_done
             from postroad.task
            where task.pipeline = pipeline.pipeline
              and task.status not in ('completed', 'cancelled') and task.status <> 'failed'
            order by task.created_at
            limit %(most)s
           ) as task
),
at_stage as (
    select stage.pipeline, stage.stage, run.status, coalesce(open.not_before > now(), false) as is_early,
           greatest(open.created_at, open.not_before,
                    (select max(finished_at)
                       from postroad.stage_run as before
                      where before.task_id = open.task_id and before.stage = any (stage.after))) as since
      from open
      join postroad.stage on stage.pipeline = open.pipeline
                         and stage.after <@ open.stages_done and stage.stage <> all (open.stages_done)
      left join lateral (
           select status from postroad.stage_run where stage_run.task_id = open.task_id and stage_run.stage = stage.stage
           ) as run on true
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
select stage.pipeline, stage.stage, stage.paused, stage.resting_until is not null as resting,
       coalesce(depth.ready, 0) as ready, coalesce(depth.retrying, 0) as retrying, coalesce(depth.waiting, 0) as waiting,
       coalesce(depth.scheduled, 0) as scheduled, letters.dead,
       depth.oldest::double precision as oldest_ready,
       extract(epoch from clock_timestamp() - letters.oldest)::double precision as oldest_dead
  from postroad.stage
  left join depth using (pipeline, stage)
 cross join lateral (
       select count(*) as dead, min(died_at) as oldest
         from (select died_at
                 from postroad.dead_letter as letter
                where letter.resolved_at is null and letter.pipeline = stage.pipeline and letter.stage = stage.stage
                limit %(most)s) as letter
       ) as letters
