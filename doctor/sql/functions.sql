-- The functions in our schema. Parameter: schema text. Returns name text.
select distinct proname::text as name from pg_proc where pronamespace = to_regnamespace(%(schema)s)
