-- Take entries that are pending under another consumer, if that one is dead; or under the own name, after a read
-- whose reply was lost.
--
-- KEYS[1]  the stage's stream          KEYS[2]  the key that exists while the owner lives
-- ARGV[1]  group   ARGV[2]  the consumer that takes them   ARGV[3]  their owner   ARGV[4]  how many at most
-- ARGV[5…] ids to leave alone
--
-- Returns for each taken entry {id, fields, deliveries}. Asked for by owner: a query over all owners would return the
-- oldest, which are the parked ones, and XAUTOCLAIM would take them before they are due.
-- The counter stays as it is: it says how many owners died with the entry in hand, and counts this delivery only when
-- its run begins (count.lua). Else those that only wait beside a killer would be taken for killers too.
local is_own = ARGV[2] == ARGV[3]
if not is_own and redis.call('EXISTS', KEYS[2]) == 1 then return {} end
local held = {}
for i = 5, #ARGV do held[ARGV[i]] = true end
local taken = {}
local from = '-'
while #taken < tonumber(ARGV[4]) do
  local page = redis.call('XPENDING', KEYS[1], ARGV[1], from, '+', 100, ARGV[3])
  for _, pending in ipairs(page) do
    if not held[pending[1]] and #taken < tonumber(ARGV[4]) then
      local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, pending[1], 'RETRYCOUNT', pending[4])
      if claimed[1] and claimed[1][2] then
        taken[#taken + 1] = {pending[1], claimed[1][2], is_own and pending[4] or pending[4] + 1}
      else
        redis.call('XACK', KEYS[1], ARGV[1], pending[1])
      end
    end
  end
  if #page < 100 then break end
  from = '(' .. page[#page][1]
end
return taken
