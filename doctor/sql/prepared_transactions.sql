-- Transactions that were prepared for two-phase commit and not ended, in this database. Parameter: at_least interval.
-- Returns name text, role text, seconds double precision, the oldest first, at most 20.
select gid as name, owner::text as role, extract(epoch from clock_timestamp() - prepared)::double precision as seconds
  from pg_prepared_xacts
 where database = current_database() and prepared < clock_timestamp() - %(at_least)s::interval
 order by prepared
 limit 20
