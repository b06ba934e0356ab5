-- Is there anything that the last tick did not cover: rows of later transactions, or of those that ran at the time?
-- Parameter: snapshot pg_snapshot of the last tick.
-- Leans on outbox_xid by order by … limit 1; with exists() the planner reads the whole table. Takes no xid.
-- Rows from a future that this server has not reached (another cluster's, after a restore) do not count.
(select 1
   from postroad.outbox
  where xid >= pg_snapshot_xmax(%(snapshot)s::pg_snapshot) and xid < pg_snapshot_xmax(pg_current_snapshot())
  order by xid limit 1)
union all
(select 1
   from postroad.outbox
  where xid = any (array(select pg_snapshot_xip(%(snapshot)s::pg_snapshot)))
  order by xid limit 1)
limit 1
