-- Announces the limits of a process, for a time.
--
-- KEYS: the announcement of the process, the sorted set of all processes.
-- ARGV: the id of the process, the announcement, its TTL in milliseconds, the time in milliseconds ('' for the clock of
-- the server).
local now = tonumber(ARGV[4])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return 1
