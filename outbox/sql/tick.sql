-- Make the next tick. Runs after lock_ticks in its transaction, which commits synchronously and writes nothing else.
-- Numbers are milliseconds, so that the two sides of a failover never give one number to two batches.
-- Returns tick bigint, snapshot text; no row if the last tick is not of this server (see last_tick).
insert into postroad.tick (tick, snapshot, system_identifier)
select greatest(last.tick + 1, (extract(epoch from clock_timestamp()) * 1000)::bigint),
       pg_current_snapshot(),
       last.system_identifier
  from (select * from postroad.tick order by tick desc limit 1) as last
 where last.system_identifier = (select system_identifier from pg_control_system())
   and pg_snapshot_xmax(last.snapshot) <= pg_snapshot_xmax(pg_current_snapshot())
returning tick, snapshot::text
