-- How vacuum keeps up with our tables, by the statistics that Postgres keeps. Parameter: schema text.
-- Returns "table" text, dead bigint, due bigint (dead rows from which autovacuum sets to work), since double precision (seconds
-- since the last vacuum; null: never), is_off boolean (autovacuum is switched off for this table).
select stat.relname::text as table, n_dead_tup as dead,
       (current_setting('autovacuum_vacuum_threshold')::bigint
        + current_setting('autovacuum_vacuum_scale_factor')::double precision * greatest(class.reltuples, 0))::bigint as due,
       extract(epoch from clock_timestamp() - greatest(last_vacuum, last_autovacuum))::double precision as since,
       coalesce('autovacuum_enabled=false' = any (reloptions) or 'autovacuum_enabled=off' = any (reloptions), false) as is_off
  from pg_stat_user_tables as stat
  join pg_class as class on class.oid = stat.relid
 where schemaname = %(schema)s
 order by n_dead_tup desc
