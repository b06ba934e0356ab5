-- Set a shard's marker if it is still as it was seen; after a rebuild.
--
-- KEYS[1]  the shard's marker
-- ARGV[1]  the marker that was seen ('' if there was none)
-- ARGV[2]  the new one
--
-- Returns 1, or 0 if another relay was first.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
