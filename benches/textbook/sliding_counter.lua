-- Two counts in a hash; the older count is weighted.
-- KEYS[1] key; ARGV threshold, period in microseconds
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local threshold, period = tonumber(ARGV[1]), tonumber(ARGV[2])
local window = math.floor(now / period)
local state = redis.call('HMGET', KEYS[1], 'window', 'current', 'previous')
local last, current, previous = tonumber(state[1]), tonumber(state[2]), tonumber(state[3])
if last == window - 1 then
  previous, current = current, 0
elseif last ~= window then
  previous, current = 0, 0
end
local used = previous * (1 - (now % period) / period) + current
if used + 1 <= threshold then
  redis.call('HSET', KEYS[1], 'window', window, 'current', current + 1, 'previous', previous)
  redis.call('PEXPIRE', KEYS[1], math.ceil(2 * period / 1000))
  return {1, math.floor(threshold - used - 1), 0}
end
return {0, 0, period - now % period}
