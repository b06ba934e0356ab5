-- The snapshot of a tick of this server. Parameter: tick bigint. Returns snapshot text.
select snapshot::text
  from postroad.tick
 where tick = %(tick)s and system_identifier = (select system_identifier from pg_control_system())
