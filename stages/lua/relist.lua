-- List parked entries by due time again if the list was lost: they are due now, and Postgres knows better.
--
-- KEYS[1]  the stage's stream          KEYS[2]  its entries by due time
-- ARGV[1]  group   ARGV[2]  the consumer under which they wait   ARGV[3]  where to begin ('-', or '(' and an id)
--
-- Returns the id of the last entry seen if there may be more, else ''. Cheap while the list is whole.
local summary = redis.call('XPENDING', KEYS[1], ARGV[1])
local parked = 0
for _, owner in ipairs(summary[4] or {}) do
  if owner[1] == ARGV[2] then parked = tonumber(owner[2]) end
end
if parked <= redis.call('ZCARD', KEYS[2]) then return '' end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local page = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], '+', 250, ARGV[2])
for _, pending in ipairs(page) do redis.call('ZADD', KEYS[2], 'NX', now, pending[1]) end
if #page < 250 then return '' end
return page[#page][1]
