-- Replaces the rules of a fleet if their version is still the one that the caller has read.
--
-- KEYS: the hash with the rules, the list of changes.
-- ARGV: the version that the new rules replace ('' for none), the new version, the rules, what has changed, the time in
-- microseconds ('' for the clock of the server).
-- Replies with the version that the hash had.
local present = redis.call('HGET', KEYS[1], 'version') or ''
if present == ARGV[1] then
  local now = ARGV[5]
  if now == '' then
    local time = redis.call('TIME')
    now = time[1] .. string.format('%06d', time[2])
  end
  redis.call('HSET', KEYS[1], 'version', ARGV[2], 'rules', ARGV[3])
  redis.call('LPUSH', KEYS[2], now .. ' ' .. ARGV[4])
  redis.call('LTRIM', KEYS[2], 0, 999)
end
return present
