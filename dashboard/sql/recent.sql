-- What has happened lately: the newest events, at most an hour old, by stage and by minute. Parameter: most int, so many
-- events are looked at.
-- Walks the primary key of outbox from its end. Returns, for each (pipeline, stage) and each minute of it (minutes_ago int,
-- 0 the running one) and once for all of them (minutes_ago null): accepted, done, failed, dead, completed, lately
-- bigint (attempts that ended, or tasks that began, in the last minute); wait_p50, wait_p95, run_p50, run_p95 float8
-- (seconds; null: not known); and in every row since timestamptz, from when on all events were looked at. stage is null for
-- the events of the task as a whole.
with newest as materialized (
    select pipeline, stage, type, occurred_at,
           case when type like 'Stage%%' then (data ->> 'waited_seconds')::float8 end as waited,
           case when type like 'Stage%%' then (data ->> 'ran_seconds')::float8 end as ran
      from postroad.outbox
     order by position desc
     limit %(most)s
),
known as materialized (
    select case when count(*) < %(most)s then now() - interval '1 hour'
                else greatest(min(occurred_at), now() - interval '1 hour') end as since
      from newest
)
select newest.pipeline, newest.stage, minute.minutes_ago,
       count(*) filter (where type = 'TaskCreated') as accepted,
       count(*) filter (where type = 'StageCompleted') as done,
       count(*) filter (where type = 'StageFailed') as failed,
       count(*) filter (where type = 'StageDead') as dead,
       count(*) filter (where type = 'TaskCompleted') as completed,
       count(*) filter (where type in ('TaskCreated', 'StageCompleted', 'StageFailed', 'StageDead')
                          and occurred_at > now() - interval '1 minute') as lately,
       percentile_cont(0.5) within group (order by waited) as wait_p50,
       percentile_cont(0.95) within group (order by waited) as wait_p95,
       percentile_cont(0.5) within group (order by ran) as run_p50,
       percentile_cont(0.95) within group (order by ran) as run_p95,
       (select since from known) as since
  from newest
 cross join lateral (select floor(extract(epoch from now() - occurred_at) / 60)::int as minutes_ago) as minute
 where occurred_at > (select since from known)
 group by grouping sets ((newest.pipeline, newest.stage), (newest.pipeline, newest.stage, minute.minutes_ago))
