
-- Corrects charges that are independent of each other, once their calls have ended, and closes and opens keys.
-- Twin of `Embedded::settle` in ratelimit-runtime/src/store/embedded/mod.rs.
--
-- KEYS[i]          the key of entry i
-- ARGV[1]          for each entry: the limit (1); the receipt of the charge, which is a birth (7) and a place (7); the
--                  units to give back (4); the units to charge (4); and a time (7). A time of 0 changes nothing, and
--                  2^53 - 1 opens the key. Any other time closes the key for as many microseconds
-- ARGV[2]          see `prelude.lua`
-- ARGV[limit + 2]  a limit, see `several.lua`
-- Reply            list of strings, see `each.lua`. The reply to an entry is the reply to its correction, see
--                  `answer.lua`; if it failed, 30 zero bytes

local entries, BORN, OPEN = ARGV[1], 64, 9007199254740991

-- Returns whether a state has this birth.
local function has_birth(key, birth)
  local beginning = call('GETRANGE', key, 0, CLOSED_HEADER + 13)
  local _, _, _, state = unwrap(beginning)
  beginning = state or beginning
  if #beginning < 14 then return false end
  local version, _, own = unpack('>I1I6I7', beginning)
  return version % (2 * BORN) >= BORN and own == birth
end

return each(function(entry, key)
  local limit, birth, place, less, more, time = unpack('>I1I7I7I4I4I7', entries, entry * 30 - 29)
  local stands_still, reply = stand_still[limits[limit][1]], nil
  if less > 0 and has_birth(key, birth) then
    -- A bucket finds a charge by its number, a window by its time.
    reply = ask(limit, key, stands_still and 'settle' or 'return', less, place)
  elseif more > 0 then
    reply = ask(limit, key, 'charge', more)
  end
  reply = reply or ask(limit, key, 'peek', 0)
  if time == OPEN then
    open(stands_still, key, function() return ask(limit, key, 'peek', 0) end)
  elseif time > 0 then
    close(stands_still, key, time)
  end
  return reply
end, string.rep('\0', 30))
