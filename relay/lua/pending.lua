-- The tasks of a page of the entries that were delivered and not acknowledged, parked ones too.
--
-- KEYS[1]  the stage's stream      ARGV[1]  its group   ARGV[2]  where to begin ('-', or '(' and an id)
-- ARGV[3]  how many at most
--
-- Returns the id of the last entry seen if there may be more, else '', then {task, id} of each. An entry whose body was
-- deleted has no task any more.
local page = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], '+', ARGV[3])
local answer = {''}
for _, pending in ipairs(page) do
  local entry = redis.call('XRANGE', KEYS[1], pending[1], pending[1])[1]
  if entry then
    for i = 1, #entry[2], 2 do
      if entry[2][i] == 'task' then answer[#answer + 1] = {entry[2][i + 1], pending[1]} end
    end
  end
end
if #page == tonumber(ARGV[3]) then answer[1] = page[#page][1] end
return answer
