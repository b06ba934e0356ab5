-- The schedules whose next tick has come, held until the transaction ends. Parameter: "limit" int.
-- Locks their rows; what another relay holds is left to it. Leans on schedule_due.
-- Returns schedule, pipeline, cron, timezone, payload text, labels text, next_at, now timestamptz.
select schedule, pipeline, cron, timezone, payload::text, labels::text, next_at, clock_timestamp() as now
  from postroad.schedule
 where not paused and next_at <= clock_timestamp()
 order by next_at, schedule
 limit %(limit)s
   for update skip locked
