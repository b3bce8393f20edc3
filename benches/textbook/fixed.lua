-- A counter with a TTL.
-- KEYS[1] key; ARGV threshold, period in microseconds
local threshold, period = tonumber(ARGV[1]), tonumber(ARGV[2])
local used = redis.call('INCR', KEYS[1])
if used == 1 then redis.call('PEXPIRE', KEYS[1], math.ceil(period / 1000)) end
if used <= threshold then return {1, threshold - used, 0} end
return {0, 0, redis.call('PTTL', KEYS[1])}
