-- The newest tick, and whether this server can go on from it: it is the server that made it, and its transaction ids
-- have not gone back. Returns one row: tick bigint, snapshot text, is_ours boolean.
select tick, snapshot::text,
       system_identifier = (select system_identifier from pg_control_system())
       and pg_snapshot_xmax(snapshot) <= pg_snapshot_xmax(pg_current_snapshot())
  from postroad.tick
 order by tick desc
 limit 1
