-- What our tables take on disk, with their indexes; the leaves of the outbox as one. Parameter: schema text.
-- Asks the file system for each file: some hundred calls. Returns "table" text, bytes bigint, the largest first.
select coalesce(pg_partition_root(oid), oid)::regclass::text as table, sum(pg_total_relation_size(oid))::bigint as bytes
  from pg_class
 where relnamespace = to_regnamespace(%(schema)s) and relkind = 'r'
 group by 1
 order by 2 desc
