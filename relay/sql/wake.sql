-- The relay is awake: appending transactions need not notify it.
select pg_advisory_unlock(hashtextextended('postroad.asleep', 0))
