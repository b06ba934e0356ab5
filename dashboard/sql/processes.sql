-- The processes of the last day, those that live first. Returns the columns of process, silent float8 (seconds since it was
-- seen), and at most 500 rows.
select process, role, host, pid, version, stages, is_leading, running, started_at, seen_at, stopped_at,
       extract(epoch from now() - seen_at)::float8 as silent
  from postroad.process
 order by stopped_at is not null, role, host, pid, process
 limit 500
