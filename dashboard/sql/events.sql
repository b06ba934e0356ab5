-- The latest steps of one task's journey, oldest first. Parameters: task_id uuid, most int, before bigint (only those of
-- positions before it; null: all). Leans on outbox_task, under the view task_journey.
-- Returns of that position, event, stage, occurred_at, outcome, attempt, worker, ready_at, started_at, ended_at, next_at,
-- reason, error, data jsonb; and written text, what Postgres writes for data, 20,000 characters at most.
select position, event, stage, occurred_at, outcome, attempt, worker, ready_at, started_at, ended_at, next_at,
       reason, error, data, left(data::text, 20000) as written
  from (select *
          from postroad.task_journey
         where task_id = %(task_id)s and (%(before)s::bigint is null or position < %(before)s::bigint)
         order by position desc
         limit %(most)s) as latest
 order by position
