-- Announce that the relay sleeps, so that appending transactions notify it (see the function wake_relay).
-- False while a transaction is open that appended when the relay was awake: it will not notify. Returns one boolean.
select pg_try_advisory_lock(hashtextextended('postroad.asleep', 0))
