-- Corrects charges in their order, once their calls have ended, and blocks, unblocks and resets keys. States what a
-- process holds of several counts of calls in flight: heartbeats, and the ends of many calls.
-- Twin of `Local::correct` in ratelimit-runtime/src/local/mod.rs.
--
-- KEYS[i]          the key of entry i
-- ARGV[1]          for each entry: the limit (1); the cost (7, below 0 in two's complement), the birth (7) and the
--                  operand (7), see `prelude.lua`; the moment (7) if a reserved moment of a bucket goes back, otherwise
--                  0; and a time (7). A time of 0 changes nothing, 2^53 - 1 unblocks the key, and 2^53 - 2 resets it:
--                  units in flight are freed if the operand is 1, and stated if it is 2. Any other time blocks the
--                  key for as many microseconds
-- ARGV[2]          see `prelude.lua`
-- ARGV[limit + 2]  a limit, see `several.lua`
-- Reply            list of strings, see `each.lua`. The reply to an entry is the reply to its correction, see
--                  `answer.lua`; if it failed, 36 zero bytes. A reset is allowed if there was something to remove. One
--                  of units in flight, and a statement, have the receipt in place of the remaining units and the wait

--@include prelude, each, several

local entries = ARGV[1]

return each(function(entry, key)
  local limit, cost, birth, operand, moment, time = unpack('>I1i7I7I7I7I7', entries, entry * 36 - 35)
  if time == 9007199254740990 then
    if operand == 0 then return pack('>I7I1I7I7I7I7', clock, call('UNLINK', key), 0, 0, 0, 0) end
    local reply = ask(limit, key, 'hold', 0, 0, operand)
    return string.sub(reply, 1, 8) .. string.sub(reply, 37, 50) .. string.rep('\0', 14)
  end
  local block = time > 0 and time or nil
  -- The reply to a peek tells whether the key was blocked.
  if cost == 0 and block then return ask(limit, key, 'peek', 0, 0, 1, block) end
  if moment > 0 then
    local reply = ask(limit, key, 'cancel', cost, birth, { operand, moment }, block)
    if string.byte(reply, 8) == 1 then return reply end
  end
  -- A moment before other charges goes back as far as these allow.
  return ask(limit, key, 'correct', cost, birth, operand, block)
end, string.rep('\0', 36))
