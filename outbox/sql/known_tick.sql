-- Whether a marker in Redis refers to a tick of this server (see last_tick). Parameter: tick bigint.
-- Returns a row if it does.
select 1
  from postroad.tick
 where tick = %(tick)s
   and system_identifier = (select system_identifier from pg_control_system())
   and pg_snapshot_xmax(snapshot) <= pg_snapshot_xmax(pg_current_snapshot())
