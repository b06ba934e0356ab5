-- What prune ought to have deleted. Parameters: late interval (the retention, and what prune may be late by), "limit" int: so
-- many of the oldest tasks are looked at. Leans on task_created_at and the primary key of tick.
-- Returns tasks int, tick_age double precision (seconds since the oldest tick; null: there is none).
select (select count(*)
          from (select status, finished_at from postroad.task order by created_at, task_id limit %(limit)s) as old
         where status in ('completed', 'cancelled') and finished_at < now() - %(late)s::interval)::int as tasks,
       (select extract(epoch from clock_timestamp() - made_at) from postroad.tick order by tick limit 1)::double precision
           as tick_age
