-- The moment before which every committed event has been published into a shard. Parameter: tick bigint, that of the
-- shard's marker. It is that tick's; or now, if it is the newest and a peek found no news since (is_quiet boolean).
-- Returns one timestamptz; no row for a tick that there is not.
select case when %(is_quiet)s and tick = (select max(tick) from postroad.tick) then clock_timestamp() else made_at end
  from postroad.tick
 where tick = %(tick)s
