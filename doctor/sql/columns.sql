-- The tables and views in our schema and their columns. Returns "table" text, "column" text.
select class.relname as table, attribute.attname as column
  from pg_class as class
  join pg_attribute as attribute on attribute.attrelid = class.oid and attribute.attnum > 0 and not attribute.attisdropped
 where class.relnamespace = to_regnamespace(%(schema)s) and class.relkind in ('r', 'p', 'v')
