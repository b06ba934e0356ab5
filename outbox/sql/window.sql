-- The events that somebody may wait for in one window, by position: visible in its tick and not in the one before.
-- Parameters: before and snapshot pg_snapshot, position bigint (begin after it), "limit" bigint (null: all).
-- Two arms on outbox_xid: transactions that began after the tick before, and those that it saw running. Asking
-- "visible in one and not in the other" alone reads the whole table. Materialized, or the limit may lure the planner
-- to walk the primary key. By position: order by xid would put effects before their causes.
-- Returns position bigint, task_id uuid, pipeline text, type text, stage text, traceparent text, time bigint (ms),
-- priority smallint.
with event as materialized (
    select position, task_id, pipeline, type, stage, traceparent, occurred_at, priority
      from postroad.outbox
     where xid >= pg_snapshot_xmax(%(before)s::pg_snapshot)
       and xid < pg_snapshot_xmax(%(snapshot)s::pg_snapshot)
       and pg_visible_in_snapshot(xid, %(snapshot)s::pg_snapshot)
       and type in ('TaskCreated', 'StageCompleted', 'StageRequested')
    union all
    select position, task_id, pipeline, type, stage, traceparent, occurred_at, priority
      from postroad.outbox
     where xid = any (array(select running
                              from pg_snapshot_xip(%(before)s::pg_snapshot) as running
                             where pg_visible_in_snapshot(running, %(snapshot)s::pg_snapshot)))
       and type in ('TaskCreated', 'StageCompleted', 'StageRequested')
)
select position, task_id, pipeline, type, stage, traceparent,
       (extract(epoch from occurred_at) * 1000)::bigint as time, priority
  from event
 where position > %(position)s
 order by position
 limit %(limit)s
