-- Reads the last changes of the rules, the newest first.
--
-- KEYS: the list of changes.
-- ARGV: the most changes, the most bytes of a change, the most bytes of all. Larger changes are left out.
local changes, bytes = {}, 0
for index = 0, ARGV[1] - 1 do
  local change = redis.call('LRANGE', KEYS[1], index, index)[1]
  if not change then
    break
  end
  if #change <= tonumber(ARGV[2]) then
    bytes = bytes + #change
    if bytes > tonumber(ARGV[3]) then
      break
    end
    changes[#changes + 1] = change
  end
end
return changes
