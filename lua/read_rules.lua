-- Reads the rules of a fleet, unless the caller knows their version, or they are larger than rules can be.
--
-- KEYS: the hash with the rules.
-- ARGV: the version that the caller knows, the most bytes of a version, the most bytes of rules.
-- Replies with the version and the rules, or with the version alone if the caller knows it.
local reply = {}
for index, field in ipairs({ 'version', 'rules' }) do
  if redis.call('HSTRLEN', KEYS[1], field) > tonumber(ARGV[index + 1]) then
    return redis.error_reply('RULES the ' .. field .. ' in Redis is too large: over ' .. ARGV[index + 1] .. ' bytes')
  end
  reply[index] = redis.call('HGET', KEYS[1], field) or ''
  if reply[1] == ARGV[1] then
    return reply
  end
end
return reply
