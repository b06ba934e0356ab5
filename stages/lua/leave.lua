-- Remove a consumer from the group if nothing is pending under its name.
--
-- KEYS[1]  the stage's stream
-- ARGV[1]  group   ARGV[2]  the consumer
--
-- Returns 1 if it is gone. In one step with the look: XGROUP DELCONSUMER drops what is pending, and a read that is
-- still under way may be handed an entry at any moment.
local summary = redis.call('XPENDING', KEYS[1], ARGV[1])
for _, owner in ipairs(summary[4] or {}) do
  if owner[1] == ARGV[2] then return 0 end
end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
