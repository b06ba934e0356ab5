-- Delete entries that nobody will be given again: they were delivered and are pending no more, but stayed in the stream,
-- as when a worker dies between its XACK and its XDEL, or somebody deletes a consumer with all that it held.
--
-- KEYS[1]  the stage's stream
-- ARGV[1]  group   ARGV[2]  how many at most
--
-- Returns how many were deleted. Only those below the oldest pending entry: what is beyond it waits for its turn. A
-- stream that others read too is left alone.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local groups = redis.call('XINFO', 'GROUPS', KEYS[1])
if #groups ~= 1 then return 0 end
local until_id
for i = 1, #groups[1], 2 do
  if groups[1][i] == 'last-delivered-id' then until_id = groups[1][i + 1] end
end
local pending = redis.call('XPENDING', KEYS[1], ARGV[1])
if pending[1] > 0 then until_id = '(' .. pending[2] end
local deleted = 0
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', until_id, 'COUNT', ARGV[2])) do
  deleted = deleted + redis.call('XDEL', KEYS[1], entry[1])
end
return deleted
