-- Publish one page of events into a shard, once, whoever tries and however often.
--
-- KEYS[1]    the shard's marker
-- KEYS[2…]   the streams that the page touches
-- ARGV[1]    the marker as the relay knows it ('' if there is none)
-- ARGV[2]    the marker when the page is in
-- ARGV[3]    number of streams n, then n names of their groups, then for each entry six values:
--            index into KEYS, event, type, task, time, traceparent
--
-- Returns {'published'}; {'moved', marker} if the marker is not the expected one; {'missing'} if a stream or its
-- group is gone. In the last two cases nothing was written: an entry without its group would be lost unseen.
local marker = redis.call('GET', KEYS[1]) or ''
if marker ~= ARGV[1] then return {'moved', marker} end

local function has_group(stream, group)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err then return false end
  for _, fields in ipairs(groups) do
    for i = 1, #fields, 2 do
      if fields[i] == 'name' and fields[i + 1] == group then return true end
    end
  end
  return false
end

local streams = tonumber(ARGV[3])
for i = 1, streams do
  if not has_group(KEYS[i + 1], ARGV[i + 3]) then return {'missing'} end
end

for i = streams + 4, #ARGV, 6 do
  redis.call('XADD', KEYS[tonumber(ARGV[i])], 'NOMKSTREAM', '*',
    'event', ARGV[i + 1], 'type', ARGV[i + 2], 'task', ARGV[i + 3], 'time', ARGV[i + 4], 'traceparent', ARGV[i + 5])
end
redis.call('SET', KEYS[1], ARGV[2])
return {'published'}
