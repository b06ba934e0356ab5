-- How much larger the files of our tables are than their rows need, by the statistics of the last analyze: an estimate, of
-- tables that were analysed. It counts no row that was still being inserted; those are known to the counters. Parameters: schema text, at_least bigint (bytes; smaller files are left out).
-- A row has a header of 24 bytes and a pointer of 4, and is padded, by 4 on average. Returns "table" text, bytes bigint,
-- needed double precision.
select class.relname::text as table, class.relpages::bigint * current_setting('block_size')::int as bytes,
       greatest(class.reltuples, pg_stat_get_live_tuples(class.oid), 1) * (32 + width.width)
           / coalesce((select option_value::double precision / 100
                         from pg_options_to_table(class.reloptions)
                        where option_name = 'fillfactor'), 1) as needed
  from pg_class as class
 cross join lateral (
       select sum((1 - null_frac) * avg_width) as width
         from pg_stats
        where schemaname = %(schema)s and tablename = class.relname) as width
 where class.relnamespace = to_regnamespace(%(schema)s)
   and class.relkind = 'r'
   and class.reltuples >= 0
   and width.width is not null
   and class.relpages::bigint * current_setting('block_size')::int >= %(at_least)s
 order by 2 desc
