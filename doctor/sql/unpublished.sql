-- The events that have not reached Redis: how old the oldest is, and how many there are. Parameters: tick bigint, the earliest
-- that a marker names (null: there is no marker); is_part boolean (only a part of its window was published); "limit" int.
-- The oldest is as the door finds it (intake/sql/pressure.sql): of the first window that was not published, or of a
-- transaction after the newest tick. The count is of what came after the snapshot of that tick, along outbox_xid: events of
-- transactions that it saw running are not in it. Returns age double precision (seconds; null: all is published), events int.
with newest as materialized (
    select tick, snapshot, made_at from postroad.tick order by tick desc limit 1
),
published as materialized (
    select snapshot
      from postroad.tick
     where tick <= coalesce(%(tick)s::bigint, 9223372036854775807) - %(is_part)s::boolean::int
     order by tick desc
     limit 1
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
select (select extract(epoch from clock_timestamp() - min(since)) from unpublished)::double precision as age,
       (select count(*)
          from (select
                  from postroad.outbox
                 where xid >= pg_snapshot_xmax((select snapshot from published))
                   and xid < pg_snapshot_xmax(pg_current_snapshot())
                   and type in ('TaskCreated', 'StageCompleted', 'StageRequested')
                 order by xid
                 limit %(limit)s) as event)::int as events
