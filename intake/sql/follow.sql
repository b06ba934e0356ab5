-- What has been added to the journeys of these tasks. Parameters, arrays of one length: task_id uuid[], position
-- bigint[] and snapshot text[] (of pg_snapshot): known are the events up to that position that are visible in that
-- snapshot; if it is null, all up to that position. Leans on the primary key of task and on outbox_task.
-- Returns a row for each task, or for each event in the order of positions: place bigint (from 1), status (null: no such
-- task), snapshot text (the one in which all this was read), and position, type, stage, data, occurred_at (null: nothing
-- new).
select asked.place, task.status, pg_current_snapshot()::text as snapshot,
       event.position, event.type, event.stage, event.data, event.occurred_at
  from unnest(%(task_id)s::uuid[], %(position)s::bigint[], %(snapshot)s::text[])
       with ordinality as asked (task_id, position, snapshot, place)
  left join postroad.task on task.task_id = asked.task_id
  left join lateral (
       select outbox.position, outbox.type, outbox.stage, outbox.data, outbox.occurred_at
         from postroad.outbox
        where outbox.task_id = asked.task_id
          and (outbox.position > asked.position
               or not pg_visible_in_snapshot(outbox.xid, asked.snapshot::pg_snapshot))
       ) as event on true
 order by asked.place, event.position
