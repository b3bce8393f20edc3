-- Corrects charges that are independent of each other, once their calls have ended, and closes and opens keys.
-- Twin of `Local::settle` in ratelimit-runtime/src/local/mod.rs.
--
-- KEYS[i]          the key of entry i
-- ARGV[1]          for each entry: the limit (1); the receipt of the charge, which is a birth (7) and a place (7); the
--                  units to give back (4); the units to charge (4); and a time (7). A time of 0 changes nothing, and
--                  2^53 - 1 opens the key. Any other time closes the key for as many microseconds
-- ARGV[2]          see `prelude.lua`
-- ARGV[limit + 2]  a limit, see `several.lua`
-- Reply            list of strings, see `each.lua`. The reply to an entry is the reply to its correction, see
--                  `answer.lua`; if it failed, 30 zero bytes

--@include prelude, each, several

local entries = ARGV[1]

return each(function(entry, key)
  local limit, birth, place, less, more, time = unpack('>I1I7I7I4I4I7', entries, entry * 30 - 29)
  -- A closing changes no count, and a bucket measures at its own rate.
  local op, cost, operand = 'measure', 0, 0
  if less > 0 then
    op, cost, operand = 'settle', less, { birth = birth, place = place }
  elseif more > 0 then
    op, cost = 'charge', more
  end
  return ask(limit, key, op, cost, operand, time > 0 and time or nil)
end, string.rep('\0', 30))
