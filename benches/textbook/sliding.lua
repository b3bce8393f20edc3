-- The log in a sorted set that most tutorials show, with the server's clock and distinct members.
-- KEYS[1] key; ARGV threshold, period in microseconds, a unique number
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local threshold, period = tonumber(ARGV[1]), tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - period)
local used = redis.call('ZCARD', KEYS[1])
if used < threshold then
  redis.call('ZADD', KEYS[1], now, now .. '-' .. ARGV[3])
  redis.call('PEXPIRE', KEYS[1], math.ceil(period / 1000))
  return {1, threshold - used - 1, 0}
end
local oldest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return {0, 0, oldest[2] + period - now}
