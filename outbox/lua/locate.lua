-- Where in a stage's stream the entry of one task is. Writes nothing.
--
-- KEYS[1]  the stream      ARGV[1]  its group      ARGV[2]  the task's id
-- ARGV[3]  how many entries to look at: of those not delivered, and of those of each consumer
-- ARGV[4]  the consumer of the parked ones
--
-- Returns {'missing'} if the stream or the group is gone; {'waiting', so many are before it}; {'held', consumer, ms since it
-- was delivered}; {'parked'}; {'beyond'} if there are more entries than were looked at; {'absent'}.
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
if groups.err then return {'missing'} end
local last
for _, fields in ipairs(groups) do
  local group = {}
  for i = 1, #fields, 2 do group[fields[i]] = fields[i + 1] end
  if group['name'] == ARGV[1] then last = group['last-delivered-id'] end
end
if not last then return {'missing'} end

local function is_it(entry)
  for i = 1, #entry[2], 2 do
    if entry[2][i] == 'task' then return entry[2][i + 1] == ARGV[2] end
  end
  return false
end

local limit = tonumber(ARGV[3])
local waiting = redis.call('XRANGE', KEYS[1], '(' .. last, '+', 'COUNT', limit)
for i, entry in ipairs(waiting) do
  if is_it(entry) then return {'waiting', i - 1} end
end
local is_more = #waiting == limit

for _, fields in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for i = 1, #fields, 2 do consumer[fields[i]] = fields[i + 1] end
  if consumer['pending'] > 0 then
    local page = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', limit, consumer['name'])
    for _, pending in ipairs(page) do
      local entry = redis.call('XRANGE', KEYS[1], pending[1], pending[1])[1]
      if entry and is_it(entry) then
        if consumer['name'] == ARGV[4] then return {'parked'} end
        return {'held', consumer['name'], pending[3]}
      end
    end
    if #page == limit then is_more = true end
  end
end
return {is_more and 'beyond' or 'absent'}
