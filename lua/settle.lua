
-- Corrects charges that are independent of each other, once their calls have ended, and closes and opens keys.
-- Twin of `Embedded::settle` in ratelimit-runtime/src/store/embedded/mod.rs.
--
-- KEYS[i]          the key of entry i
-- ARGV[1]          for each entry its limit (1); the receipt of its charge: a birth (7) and a place (7); the units that
--                  were charged and not used (4), or those that were used and not charged (4); the microseconds for
--                  which the key closes (7), or zero; 2^56 - 1 opens it
-- ARGV[2]          see `prelude.lua`
-- ARGV[limit + 2]  a limit, see `several.lua`
-- Reply            list of strings, see `each.lua`. The reply to an entry is the reply to its correction, see
--                  `answer.lua`; if it failed, 30 zero bytes

local entries, BORN, CLOSED, OPEN = ARGV[1], 64, 32, 72057594037927936

-- Returns whether a state has this birth.
local function has_birth(key, birth)
  local beginning = call('GETRANGE', key, 0, 34)
  if string.byte(beginning) == CLOSED then beginning = string.sub(beginning, 22) end
  if #beginning < 14 then return false end
  local version, _, own = unpack('>I1I6I7', beginning)
  return version % (2 * BORN) >= BORN and own == birth
end

return each(function(entry, key)
  local limit, birth, place, less, more, time = unpack('>I1I7I7I4I4I7', entries, entry * 30 - 29)
  local stands, reply = limits[limit][1] == bucket, nil
  if less > 0 and has_birth(key, birth) then
    -- A bucket finds a charge by its number, a window by its time.
    reply = ask(limit, key, stands and 'settle' or 'return', less, place)
  elseif more > 0 then
    reply = ask(limit, key, 'charge', more)
  end
  reply = reply or ask(limit, key, 'peek', 0)
  -- An unpacked 2^56 - 1 is rounded.
  if time == OPEN then open(stands, key) elseif time > 0 then close(stands, key, time) end
  return reply
end, string.rep('\0', 30))
