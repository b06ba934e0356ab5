-- Read new entries of several lanes: of each its share, and of what a share leaves over more from the others.
--
-- KEYS      the streams of the lanes, the most urgent first
-- ARGV[1]   their group   ARGV[2]  the consumer   ARGV[3]  how many at most
-- ARGV[4…]  the share of each lane; together as many
--
-- Returns for each lane its entries, {id, fields} of each. A lane whose stream or group is gone has none; if all are
-- gone, the error that says so. Never waits.
local taken, missing, failed = {}, 0, nil
local left = tonumber(ARGV[3])

local function read(lane, count)
  if count == 0 or failed then return 0 end
  local answer = redis.pcall(
    'XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', count, 'STREAMS', KEYS[lane], '>')
  if not answer then return 0 end
  if answer.err then
    if string.sub(answer.err, 1, 7) ~= 'NOGROUP' then failed = answer.err end
    missing = missing + 1
    return 0
  end
  for _, entry in ipairs(answer[1][2]) do table.insert(taken[lane], entry) end
  return #answer[1][2]
end

local is_short = {}
for lane = 1, #KEYS do
  taken[lane] = {}
  local share = tonumber(ARGV[lane + 3])
  local count = read(lane, share)
  is_short[lane] = count < share
  left = left - count
end
for lane = 1, #KEYS do
  if left > 0 and not is_short[lane] then left = left - read(lane, left) end
end
if failed then return redis.error_reply(failed) end
if missing == #KEYS then return redis.error_reply('NOGROUP No lane of ' .. ARGV[1] .. ' is there') end
return taken
