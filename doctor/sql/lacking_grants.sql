-- What the roles of the processes that are connected now may not do, and would have to: each part of postroad is known by its
-- application_name. Without any, what our own role may not. Parameter: schema text.
-- Returns role text, part text, what text (the object), lacking text (the privileges), oldest first.
with needed (part, object, privileges) as (
    values ('intake', 'task', 'select, update'), ('intake', 'stage_run', 'select, update, delete'),
           ('intake', 'dead_letter', 'select, update'), ('intake', 'outbox', 'select, insert'),
           ('intake', 'pipeline', 'select'), ('intake', 'stage', 'select, update'), ('intake', 'tick', 'select'),
           ('intake', 'api_key', 'select, update'), ('intake', 'operation', 'insert'),
           ('relay', 'task', 'select'), ('relay', 'stage_run', 'select'), ('relay', 'outbox', 'select, insert'),
           ('relay', 'pipeline', 'select'), ('relay', 'stage', 'select'), ('relay', 'tick', 'select, insert'),
           ('relay', 'schedule', 'select, update'),
           ('stage', 'task', 'select, update'), ('stage', 'stage_run', 'select, insert, update'),
           ('stage', 'dead_letter', 'insert'), ('stage', 'outbox', 'insert'), ('stage', 'pipeline', 'select, insert, update'),
           ('stage', 'stage', 'select, insert, update'), ('stage', 'operation', 'insert')
),
part as (
    select distinct usename::text as role, split_part(application_name, ' ', 2) as part
      from pg_stat_activity
     where datname = current_database()
       and application_name ~ '^postroad (intake|relay|stage)'
),
held as (
    select role, part from part
    union all
    select current_user::text, name from unnest(array['intake', 'relay', 'stage']) as name
     where not exists (select from part)
),
asked as (
    select held.role, held.part, needed.object, btrim(privilege) as privilege, to_regclass(%(schema)s || '.' || object) as oid
      from held
      join needed on needed.part = held.part
     cross join unnest(string_to_array(needed.privileges, ',')) as privilege
    union all
    select role, part, 'process', privilege, to_regclass(%(schema)s || '.process')
      from held
     cross join unnest(array['select', 'insert', 'update', 'delete']) as privilege
)
select role, part, object as what, string_agg(privilege, ', ' order by privilege) as lacking
  from asked
 where oid is not null and not has_table_privilege(role, oid, privilege)
 group by role, part, object
union all
select role, part, 'schema ' || %(schema)s, 'usage'
  from held
 where to_regnamespace(%(schema)s) is not null and not has_schema_privilege(role, %(schema)s, 'usage')
union all
select role, part, 'function ' || proname, 'execute'
  from held
  join pg_proc on pronamespace = to_regnamespace(%(schema)s) and proname in ('accept', 'outbox_slot')
 where (proname = 'outbox_slot' or part <> 'stage') and not has_function_privilege(role, pg_proc.oid, 'execute')
 order by 1, 2, 3
