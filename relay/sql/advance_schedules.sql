-- Take note of what was submitted for schedules. Parameters, arrays of one length: schedule text[],
-- next_at timestamptz[], last_at timestamptz[] and last_task uuid[] (null: nothing was). The caller holds the rows.
update postroad.schedule
   set next_at = done.next_at,
       last_at = coalesce(done.last_at, schedule.last_at),
       last_task = coalesce(done.last_task, schedule.last_task)
  from unnest(%(schedule)s::text[], %(next_at)s::timestamptz[], %(last_at)s::timestamptz[], %(last_task)s::uuid[])
       as done (schedule, next_at, last_at, last_task)
 where schedule.schedule = done.schedule
