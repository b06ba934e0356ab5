-- Schedules whose tick has passed. Parameter: late interval. Leans on schedule_due. Returns schedule text, seconds double
-- precision, the latest first, at most 20.
select schedule, extract(epoch from clock_timestamp() - next_at)::double precision as seconds
  from postroad.schedule
 where not paused and next_at < clock_timestamp() - %(late)s::interval
 order by next_at
 limit 20
