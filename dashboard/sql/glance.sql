-- Whether the invariants hold for some tasks: the newest ones, and the oldest open ones of each pipeline. Parameter: most int, so
-- many of each. `postroad audit` looks at all of them.
-- One statement, so one snapshot: work that goes on meanwhile is no violation. Leans on task_created_at, task_unfinished,
-- outbox_task and the primary keys. Returns looked_at bigint, and for each invariant, by its name, its violations.
with sample as materialized (
    select distinct on (task_id) *
      from ((select task_id, pipeline, status, stages_done, version, created_at, finished_at
               from postroad.task
              order by created_at desc
              limit %(most)s)
            union all
            select task.*
              from postroad.pipeline
             cross join lateral (
                   select task_id, pipeline, status, stages_done, version, created_at, finished_at
                     from postroad.task
                    where task.pipeline = pipeline.pipeline and task.status not in ('completed', 'cancelled')
                    order by task.created_at
                    limit %(most)s) as task) as either
),
looked as materialized (
    select sample.pipeline, sample.status, sample.stages_done, sample.version, sample.finished_at,
           run.done, coalesce(run.is_dead, false) as is_dead,
           event.is_created, event.writes, event.is_twice,
           exists (select from postroad.dead_letter
                    where dead_letter.task_id = sample.task_id and resolved_at is null) as has_letter
      from sample
      left join lateral (
           select array_agg(stage order by stage) filter (where stage_run.status = 'done') as done,
                  bool_or(stage_run.status = 'dead') as is_dead
             from postroad.stage_run
            where stage_run.task_id = sample.task_id) as run on true
      left join lateral (
           select bool_or(type = 'TaskCreated') as is_created,
                  count(*) filter (where type in ('TaskCreated', 'StageCompleted', 'StageFailed', 'StageSnoozed',
                                                  'StageHanded', 'StageReported', 'StageDead', 'StageRequeued',
                                                  'StageDropped', 'TaskCancelled', 'TaskRetried')
                                      or type = 'TaskCompleted' and data ->> 'reason' = 'deploy') as writes,
                  count(*) filter (where type = 'StageCompleted')
                      > count(distinct stage) filter (where type = 'StageCompleted')
                  and count(*) filter (where type = 'TaskRetried') = 0 as is_twice
             from postroad.outbox
            where outbox.task_id = sample.task_id) as event on true
     -- Of older ones the first events have been dropped.
     where sample.created_at >= (select occurred_at from postroad.outbox order by position limit 1)
)
select count(*) as looked_at,
       count(*) filter (where is_twice) as stage_done_twice,
       count(*) filter (where is_created is not true) as task_without_event,
       count(*) filter (where coalesce(done, '{}') <> array(select unnest(stages_done) order by 1)) as stages_done_differ,
       count(*) filter (where is_dead and status not in ('failed', 'cancelled')
                           or has_letter and status not in ('failed', 'cancelled')
                           or status = 'failed' and not is_dead) as failed_without_dead_letter,
       count(*) filter (where status = 'completed'
                          and (pipeline.version = 1 or finished_at > deployed_at + interval '5 minutes')
                          and exists (select from postroad.stage
                                       where stage.pipeline = looked.pipeline
                                         and stage.stage <> all (stages_done))) as completed_without_all_stages,
       count(*) filter (where looked.version <> writes) as writes_differ_from_version
  from looked
  join postroad.pipeline using (pipeline)
