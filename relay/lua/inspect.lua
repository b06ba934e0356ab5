-- How a shard stands: its marker, and which of its streams, or their groups, are gone.
--
-- KEYS[1]   the shard's marker
-- KEYS[2…]  the streams that ought to be there
-- ARGV      the names of their groups, in the same order
--
-- Returns the marker ('' if there is none), then the index (from 1) of each stream that is gone; an error if a key holds
-- something else, which nobody could mend by asking again. Writes nothing.
local state = {redis.call('GET', KEYS[1]) or ''}
for i = 2, #KEYS do
  local found = false
  local groups = redis.pcall('XINFO', 'GROUPS', KEYS[i])
  if not groups.err then
    for _, fields in ipairs(groups) do
      for j = 1, #fields, 2 do
        if fields[j] == 'name' and fields[j + 1] == ARGV[i - 1] then found = true end
      end
    end
  elseif not string.find(groups.err, 'no such key', 1, true) then
    return redis.error_reply(groups.err .. ': ' .. KEYS[i])
  end
  if not found then state[#state + 1] = tostring(i - 1) end
end
return state
