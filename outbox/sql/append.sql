-- Append events to the outbox, in the transaction of the caller.
-- Parameters, arrays of one length: task_id uuid[], pipeline text[], type text[], stage text[] (null: of no stage),
-- data jsonb[] as text[], traceparent text[].
-- Locks nothing but the new rows. The order of the arrays is the order of the positions.
insert into postroad.outbox (task_id, pipeline, type, stage, data, traceparent)
select event.task_id, event.pipeline, event.type, event.stage, event.data::jsonb, event.traceparent
  from unnest(%(task_id)s::uuid[], %(pipeline)s::text[], %(type)s::text[], %(stage)s::text[], %(data)b::text[],
              %(traceparent)s::text[])
       with ordinality as event (task_id, pipeline, type, stage, data, traceparent, place)
 order by event.place
