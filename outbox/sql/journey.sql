-- The journey of one task: its events, oldest first. Parameters: task_id uuid, position bigint (begin after it).
-- Leans on outbox_task. Returns position, type, stage, data, traceparent, occurred_at.
select position, type, stage, data, traceparent, occurred_at
  from postroad.outbox
 where task_id = %(task_id)s and position > %(position)s
 order by position
