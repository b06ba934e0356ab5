-- Transactions, of any database, that have worked for long. Parameter: at_least interval.
-- Returns pid int, role text, application text, database text, seconds double precision, query text (its beginning), the
-- longest first, at most 20.
select pid, usename::text as role, application_name as application, datname::text as database,
       extract(epoch from clock_timestamp() - xact_start)::double precision as seconds,
       left(regexp_replace(query, '\s+', ' ', 'g'), 60) as query
  from pg_stat_activity
 where state = 'active' and backend_type = 'client backend' and xact_start < clock_timestamp() - %(at_least)s::interval
   and pid <> pg_backend_pid()
 order by xact_start
 limit 20
