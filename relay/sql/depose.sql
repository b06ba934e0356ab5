-- End the session of the working relay if it has said nothing for a while: it was stopped, or its machine is gone, and
-- Postgres would keep its lock for as long as the connection seems to be there. Parameter: silence interval.
-- Silent is who is waited for, not who waits for a long statement of its own. Only of our own role may we ask either.
-- Materialized: a where that ends sessions could be tried on others before the rest of it has ruled them out.
-- Returns silent double precision (for how many seconds), pid int; no row if the relay lives.
with silent as materialized (
    select pid, extract(epoch from clock_timestamp() - state_change)::float8 as seconds
      from pg_locks
      join pg_stat_activity using (pid)
     where locktype = 'advisory'
       and pg_locks.database = (select oid from pg_database where datname = current_database())
       and (classid::bigint << 32 | objid::bigint) = hashtextextended('postroad.relay', 0)
       and objsubid = 1
       and granted
       and usename = current_user
       and (state <> 'active' or wait_event_type = 'Client')
       and state_change < clock_timestamp() - %(silence)s::interval
)
select seconds, pid, pg_terminate_backend(pid) from silent
