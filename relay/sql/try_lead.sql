-- Become the relay that works, for as long as this session lasts; the others wait. Returns one boolean.
select pg_try_advisory_lock(hashtextextended('postroad.relay', 0))
