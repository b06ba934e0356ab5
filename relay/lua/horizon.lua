-- How far a stage's stream has been delivered.
--
-- KEYS[1]  the stage's stream      ARGV[1]  its group
--
-- Returns {'missing'} if the stream or the group is gone; {'waiting', time} with the time field of the first entry that
-- was not delivered yet; {'delivered'} if there is none.
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
if groups.err then return {'missing'} end
for _, fields in ipairs(groups) do
  local group = {}
  for i = 1, #fields, 2 do group[fields[i]] = fields[i + 1] end
  if group['name'] == ARGV[1] then
    local first = redis.call('XRANGE', KEYS[1], '(' .. group['last-delivered-id'], '+', 'COUNT', 1)[1]
    if not first then return {'delivered'} end
    for i = 1, #first[2], 2 do
      if first[2][i] == 'time' then return {'waiting', first[2][i + 1]} end
    end
    return {'waiting', '0'}
  end
end
return {'missing'}
