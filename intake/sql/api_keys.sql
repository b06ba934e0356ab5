-- The keys that are good now: neither revoked nor past their end, by the clock of Postgres.
-- Returns are_any boolean (also one that is not good any more) in every row, and key_id, digest, name, scopes, pipelines,
-- rate, burst, all of them null in the one row that there is if no key is good. Reads the table, which is small.
select known.are_any, key_id, digest, name, scopes, pipelines, rate, burst
  from (select exists (select from postroad.api_key) as are_any) as known
  left join postroad.api_key on revoked_at is null and (expires_at is null or expires_at > clock_timestamp())
