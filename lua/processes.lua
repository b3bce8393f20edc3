-- Reads the ids of the processes that announce their limits.
--
-- KEYS: the sorted set of all processes.
-- ARGV: the most processes, the most bytes of an id. Larger ids are left out.
local ids = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1)) do
  if #id <= tonumber(ARGV[2]) then
    ids[#ids + 1] = id
  end
end
return ids
