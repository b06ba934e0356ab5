-- Note that keys have been used, to the minute. Parameter: key_id text[]. Locks the rows that it writes.
update postroad.api_key
   set last_used_at = now()
 where key_id = any (%(key_id)s::text[])
   and (last_used_at is null or last_used_at < now() - interval '1 minute')
