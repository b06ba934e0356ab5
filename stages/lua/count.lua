-- Count a delivery: the run of an entry begins, and may kill the worker.
--
-- KEYS[1]  the stage's stream
-- ARGV[1]  group   ARGV[2]  the consumer that holds the entry   ARGV[3]  entry id   ARGV[4]  deliveries, with this one
--
-- Returns 1, or 0 if the consumer no longer holds the entry: then it is left alone. JUSTID: no delivery by itself.
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)
if not pending[1] or pending[1][2] ~= ARGV[2] then return 0 end
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3], 'RETRYCOUNT', ARGV[4], 'JUSTID')
return 1
