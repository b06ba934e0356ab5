-- The processes in the registry: a day's. Parameter: silence interval, after which one that has not said that it stops is dead.
-- Returns process, role, version, stages, is_leading, started_at, stopped_at; started and seen double precision (seconds since),
-- lives boolean.
select process, role, version, stages, is_leading, started_at, stopped_at,
       extract(epoch from clock_timestamp() - started_at)::double precision as started,
       extract(epoch from clock_timestamp() - seen_at)::double precision as seen,
       stopped_at is null and seen_at > clock_timestamp() - %(silence)s::interval as lives
  from postroad.process
 order by started_at
