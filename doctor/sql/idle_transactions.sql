-- Sessions, of any database, that have a transaction open and have said nothing for a while. Parameter: at_least interval.
-- Returns pid int, role text, application text, database text, seconds double precision, the longest first, at most 20.
select pid, usename::text as role, application_name as application, datname::text as database,
       extract(epoch from clock_timestamp() - state_change)::double precision as seconds
  from pg_stat_activity
 where state like 'idle in transaction%%' and state_change < clock_timestamp() - %(at_least)s::interval
 order by state_change
 limit 20
