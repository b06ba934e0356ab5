-- Park failed entries until they are due, or hand entries back at once (a delay of 0).
--
-- KEYS[1]  the stage's stream          KEYS[2]  its entries by due time
-- ARGV[1]  group   ARGV[2]  the consumer that holds them   ARGV[3]  the consumer under which they wait
-- ARGV[4…] pairs: entry id, delay in ms
--
-- Returns how many were parked. Entries that the consumer no longer holds are left alone: somebody else has them.
-- RETRYCOUNT 0: deliveries count from the last outcome, so that what is left counts crashes. JUSTID: no delivery.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local parked = 0
for i = 4, #ARGV, 2 do
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)
  if pending[1] and pending[1][2] == ARGV[2] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, ARGV[i], 'RETRYCOUNT', 0, 'JUSTID')
    redis.call('ZADD', KEYS[2], now + ARGV[i + 1], ARGV[i])
    parked = parked + 1
  end
end
return parked
