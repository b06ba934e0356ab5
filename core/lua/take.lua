-- Let a process go on, within a rate and a number that may run at once, over all processes: with attempts of a stage, or
-- requests under a key.
--
-- KEYS[1]  when the next one would be due if all came evenly (µs)
-- KEYS[2]  how many entries each process holds; only needed with a limit
-- ARGV[1]  how many in a second, 0: no rate     ARGV[2]  how many at once after a rest
-- ARGV[3]  how many are wanted; less than 0 to give so many back
-- ARGV[4]  how many may run at once, 0: no limit
-- ARGV[5]  the consumer      ARGV[6]  how many entries it holds      ARGV[7]  the keys of live consumers begin so
--
-- Returns how many are granted; if none, in how many ms to ask again; and how many more the rate would grant now.
-- The keys of live consumers are not among KEYS, for nobody knows them all, but share their slot.
local rate, burst, want, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local granted, wait, left = math.max(want, 0), 0, 0

if limit > 0 then
  local others = 0
  local counts = redis.call('HGETALL', KEYS[2])
  for i = 1, #counts, 2 do
    if counts[i] ~= ARGV[5] then
      if redis.call('EXISTS', ARGV[7] .. counts[i]) == 1 then
        others = others + counts[i + 1]
      else
        redis.call('HDEL', KEYS[2], counts[i])
      end
    end
  end
  granted = math.max(0, math.min(granted, limit - others - ARGV[6]))
  if granted == 0 then wait = 50 end
end

if rate > 0 and want ~= 0 then
  local clock = redis.call('TIME')
  local now = clock[1] * 1000000 + clock[2]
  local step = 1000000 / rate
  -- Bounded on both sides: a rest saves up no more than a burst, and neither a lowered limit nor a clock that went back
  -- makes anybody wait for longer than that.
  local next = tonumber(redis.call('GET', KEYS[1]) or now)
  next = math.min(math.max(next, now), now + burst * step)
  if want < 0 then
    next = math.max(now, next + want * step)
  else
    granted = math.min(granted, math.floor((now + burst * step - next) / step + 1e-6))
    if granted == 0 then wait = math.max(wait, math.ceil((next + step - now - burst * step) / 1000)) end
    next = next + granted * step
  end
  left = math.floor((now + burst * step - next) / step + 1e-6)
  redis.call('SET', KEYS[1], string.format('%.0f', next), 'PX', math.ceil((next - now) / 1000) + 1000)
end

if limit > 0 then redis.call('HSET', KEYS[2], ARGV[5], ARGV[6] + granted) end
return {granted, wait, left}
