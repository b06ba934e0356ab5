-- Let one tick at a time be made. A statement of its own: a snapshot taken in the same statement would be older than
-- the lock, and ticks would go back.
select pg_advisory_xact_lock(hashtextextended('postroad.tick', 0))
