-- What has not been published, about. Parameters: tick bigint, the earliest that a marker of Redis names; is_part boolean
-- (only a part of its window was published); most int, where counting ends. Locks nothing. Leans on outbox_xid.
-- Events of transactions that were open in the marker's tick and have ended since are not counted: to find them would take
-- as long as one of these stays open. The age is that of the first window that is not published, or, if no tick was made
-- for it, of the first event after the newest one.
-- Returns events bigint, age double precision (seconds; 0: all is published).
with marked as materialized (
    select snapshot from postroad.tick where tick <= %(tick)s::bigint - %(is_part)s::boolean::int order by tick desc limit 1
),
newest as materialized (
    select snapshot, made_at from postroad.tick order by tick desc limit 1
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
select (select count(*)
          from marked
         cross join lateral (
               select from postroad.outbox
                where xid >= pg_snapshot_xmax(marked.snapshot) and xid < pg_snapshot_xmax(pg_current_snapshot())
                limit %(most)s) as event) as events,
       coalesce((select extract(epoch from clock_timestamp() - min(since))::double precision from unpublished), 0) as age
