-- A number of tokens and a time in a hash.
-- KEYS[1] key; ARGV threshold, period in microseconds
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local threshold, period = tonumber(ARGV[1]), tonumber(ARGV[2])
local state = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(state[1]) or threshold, tonumber(state[2]) or now
tokens = math.min(threshold, tokens + (now - at) * threshold / period)
local allowed = tokens >= 1
if allowed then tokens = tokens - 1 end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now)
redis.call('PEXPIRE', KEYS[1], math.ceil(period / 1000))
if allowed then return {1, math.floor(tokens), 0} end
return {0, 0, math.ceil((1 - tokens) * period / threshold)}
