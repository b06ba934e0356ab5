-- The ticks after a given one, each with the snapshot of the tick before it.
-- Parameters: tick bigint, "inclusive" boolean (begin with that very tick), "limit" int.
-- Returns tick bigint, before text, snapshot text, oldest first. Leans on the primary key.
select current.tick, previous.snapshot::text as before, current.snapshot::text
  from postroad.tick as current
 cross join lateral (
       select snapshot from postroad.tick where tick < current.tick order by tick desc limit 1
       ) as previous
 where current.tick > %(tick)s - %(inclusive)s::boolean::int
 order by current.tick
 limit %(limit)s
