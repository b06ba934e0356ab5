-- How much work there is that has not come to its end, and how old the oldest event is that was not published.
-- Parameters: tick bigint, the earliest that a marker of Redis names (null: not known); is_part boolean (only a part of its
-- window was published); "limit" bigint, where counting ends (0: nothing is counted).
-- Open tasks are counted along task_unfinished, each pipeline's up to the limit; those that failed are in that index but
-- not counted: they wait for people. An event is of the first window that was not published, or, if no relay has made one
-- for it, of a transaction after the newest tick; then it is as old as it says, or as that tick, whichever is younger.
-- Of the latter only the first by outbox_xid is looked at, as in peek.
-- Returns pipeline text, open bigint, age double precision (seconds; null: all is published), newest bigint (the tick).
with newest as materialized (
    select tick, snapshot, made_at from postroad.tick order by tick desc limit 1
),
unpublished as (
    (select made_at as since
       from postroad.tick
      where tick > %(tick)s::bigint - %(is_part)s::boolean::int
      order by tick
      limit 1)
    union all
    (select greatest(event.occurred_at, newest.made_at)
       from newest
      cross join lateral (
            select occurred_at
              from postroad.outbox
             where xid >= pg_snapshot_xmax(newest.snapshot) and xid < pg_snapshot_xmax(pg_current_snapshot())
             order by xid
             limit 1) as event)
)
select pipeline.pipeline, counted.open,
       (select extract(epoch from clock_timestamp() - min(since))::float8 from unpublished) as age,
       (select tick from newest) as newest
  from postroad.pipeline
 cross join lateral (
       select count(*) as open
         from (select
                 from postroad.task
                where task.pipeline = pipeline.pipeline
                  and status not in ('completed', 'cancelled') and status <> 'failed'
                limit %(limit)s) as one) as counted
