-- The semaphore of tutorials: a sorted set of holders by the time at which they expire.
-- KEYS[1] the set; ARGV: now and the expiry in milliseconds, the most holders, the holder
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[4])
redis.call('PEXPIRE', KEYS[1], 60000)
return 1
