-- How many connections there are, and may be.
-- Returns slots int (those that any role may have), used int; database_limit, database_used, role_limit, role_used int (a
-- limit of -1: none).
select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
           - coalesce(current_setting('reserved_connections', true)::int, 0) as slots,
       count(*)::int as used,
       (select datconnlimit from pg_database where datname = current_database()) as database_limit,
       count(*) filter (where datname = current_database())::int as database_used,
       (select rolconnlimit from pg_roles where rolname = current_user) as role_limit,
       count(*) filter (where usename = current_user)::int as role_used
  from pg_stat_activity
 where backend_type = 'client backend' or query = '<insufficient privilege>'
