-- Which consumers live.
--
-- KEYS  the keys that exist while they do, each with its time to live in ms as its value
--
-- Returns 1 or 0 for each. A key that would outlive that was set before the clock went back: it is given as much
-- from now on, or a dead consumer would seem to live for as long as the clock was set back.
local answer = {}
for i, key in ipairs(KEYS) do
  local life = redis.call('GET', key)
  answer[i] = life and 1 or 0
  if tonumber(life or '') and redis.call('PTTL', key) > tonumber(life) then redis.call('PEXPIRE', key, life) end
end
return answer
