-- Take parked entries that are due.
--
-- KEYS[1]  the stage's stream          KEYS[2]  its entries by due time
-- ARGV[1]  group   ARGV[2]  the consumer that takes them   ARGV[3]  the consumer under which they wait
-- ARGV[4]  how many at most
--
-- Returns the ms until the next one is due (-1: none is parked), then for each taken entry {id, fields, deliveries}.
-- The counter that XCLAIM raises starts at 0 (see park.lua), so the first delivery after an outcome is number 1.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local answer = {-1}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[4])) do
  redis.call('ZREM', KEYS[2], id)
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1)
  if pending[1] and pending[1][2] == ARGV[3] then
    local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id)
    if claimed[1] and claimed[1][2] then
      answer[#answer + 1] = {id, claimed[1][2], pending[1][4] + 1}
    else
      -- Its body was deleted: nothing to run, and no reason to keep it pending.
      redis.call('XACK', KEYS[1], ARGV[1], id)
    end
  end
end
local next = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if next[2] then answer[1] = math.max(0, math.ceil(next[2] - now)) end
return answer
