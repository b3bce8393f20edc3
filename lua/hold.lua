-- States what a process holds of several counts of calls in flight: heartbeats, and the ends of many calls. Unlike the
-- scripts of `several.lua`, it knows no other algorithm: a server that runs it creates fewer functions.
--
-- KEYS[i]      the key of entry i
-- ARGV[1]      not read
-- ARGV[2]      see `prelude.lua`
-- ARGV[i + 2]  the limit of entry i (1), and its terms with the numbers of the process, see `slots.lua`
-- Reply        list of strings, see `each.lua`. An entry has the reply of the op `hold` with its receipt, see
--              `answer.lua`, or 44 zero bytes if it failed
--
-- RUNTIME.terms is the format of the terms.

--@include prelude, answer, slots, each

return each(function(entry, key)
  local packed = ARGV[entry + 2]
  local function apply(call, clock, op, cost, operand)
    return answer(call, pack, key, clock, given,
      slots(call, pack, unpack, key, clock, given, op, cost, operand, unpack(RUNTIME.terms, packed, 2)))
  end
  local reply = apply(call, clock, 'hold', 0, 0)
  if type(reply) == 'table' then
    -- Only closed keys create these functions.
    --@include closing
    reply = ask_closed(apply, false, key, 'hold', 0, 0)
    if type(reply) == 'table' then error(reply) end
  end
  return reply
end, string.rep('\0', 44))
