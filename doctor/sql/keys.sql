-- The keys of the door that were not revoked, at most 1,000, and whether there ever was one. Returns ever boolean; name, key_id;
-- left, created and used double precision (seconds until it ends, since it was made, since it was used; null: no end, never).
select exists (select from postroad.api_key) as ever, name, key_id,
       extract(epoch from expires_at - clock_timestamp())::double precision as left,
       extract(epoch from clock_timestamp() - created_at)::double precision as created,
       extract(epoch from clock_timestamp() - last_used_at)::double precision as used
  from (select) as always
  left join postroad.api_key on revoked_at is null
 order by expires_at nulls last
 limit 1000
