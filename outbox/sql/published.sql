-- Whether events have been published into a shard of Redis, by its marker. Parameters, arrays of one length: position bigint[]
-- and xid text[] of the event; tick bigint[] and upto bigint[] of the marker (the position up to which its window was
-- published; null: all of it). Leans on the primary key of tick.
-- Returns a row for each in their order: is_published boolean (null: the tick is none of this server's), published_until
-- timestamptz (all events of before are published).
select case when last.tick is null then null
            when asked.upto is null then pg_visible_in_snapshot(asked.xid::xid8, last.snapshot)
            else pg_visible_in_snapshot(asked.xid::xid8, before.snapshot)
                 or pg_visible_in_snapshot(asked.xid::xid8, last.snapshot) and asked.position <= asked.upto
       end as is_published,
       case when asked.upto is null then last.made_at else before.made_at end as published_until
  from unnest(%(position)s::bigint[], %(xid)s::text[], %(tick)s::bigint[], %(upto)s::bigint[])
       with ordinality as asked (position, xid, tick, upto, place)
  left join postroad.tick as last on last.tick = asked.tick
  left join lateral (
       select snapshot, made_at from postroad.tick where tick.tick < asked.tick order by tick.tick desc limit 1
       ) as before on true
 order by asked.place
