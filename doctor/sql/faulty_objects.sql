-- What is in our schema and does not work: indexes whose concurrent build failed, constraints that were not validated,
-- triggers that are switched off. Parameter: schema text. Returns what text, name text.
select 'index' as what, class.relname::text as name
  from pg_index as index
  join pg_class as class on class.oid = index.indexrelid
 where class.relnamespace = to_regnamespace(%(schema)s) and not (index.indisvalid and index.indisready)
union all
select 'constraint', conname::text
  from pg_constraint
 where connamespace = to_regnamespace(%(schema)s) and not convalidated
union all
select 'trigger', trigger.tgname::text || ' on ' || class.relname::text
  from pg_trigger as trigger
  join pg_class as class on class.oid = trigger.tgrelid
 where class.relnamespace = to_regnamespace(%(schema)s) and not tgisinternal and tgenabled in ('D', 'R')
