-- Of some ticks those that this server made. Parameter: tick bigint[]. Returns tick bigint.
select tick
  from postroad.tick
 where tick = any (%(tick)s::bigint[])
   and system_identifier = (select system_identifier from pg_control_system())
