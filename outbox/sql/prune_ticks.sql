-- Delete ticks that nobody needs: older than the events that are kept, and before every shard's marker. The one before
-- the marker stays, as the lower bound of its window. Parameters: tick bigint (the earliest marker's), retention interval.
delete from postroad.tick
 where made_at < now() - %(retention)s::interval - interval '1 hour'
   and tick < (select max(earlier.tick) from postroad.tick as earlier where earlier.tick < %(tick)s)
