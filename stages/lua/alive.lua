-- Which consumers live.
--
-- KEYS  the keys that exist while they do, each with its lease in ms as its value
--
-- Returns 1 or 0 for each. A key that would outlive its lease was set before the clock went back: it is given a lease
-- from now on, or a dead consumer would seem to live for as long as the clock was set back.
local answer = {}
for i, key in ipairs(KEYS) do
  local lease = redis.call('GET', key)
  answer[i] = lease and 1 or 0
  if tonumber(lease or '') and redis.call('PTTL', key) > tonumber(lease) then redis.call('PEXPIRE', key, lease) end
end
return answer
