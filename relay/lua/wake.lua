-- Make parked entries due that Postgres says are: the clock by which they were to wait went back meanwhile.
--
-- KEYS[1]  the stage's entries by due time      ARGV  their ids
--
-- Returns how many were still to wait. Those that are not parked any more are left alone.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local woken = 0
for _, id in ipairs(ARGV) do
  local due = redis.call('ZSCORE', KEYS[1], id)
  if due and tonumber(due) > now then
    redis.call('ZADD', KEYS[1], now, id)
    woken = woken + 1
  end
end
return woken
