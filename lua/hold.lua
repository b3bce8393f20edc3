-- States what a process holds of several counts of calls in flight: heartbeats, and the ends of many calls. Unlike the
-- scripts of `several.lua`, it knows no other algorithm: a server that runs it creates fewer functions.
--
-- KEYS[i]      the key of entry i
-- ARGV[1]      not read
-- ARGV[2]      see `prelude.lua`
-- ARGV[i + 2]  the limit of entry i (1), and its terms with the numbers of the process, see `slots.lua`
-- Reply        list of strings, see `each.lua`. An entry has the reply of the op `hold` with its receipt, see
--              `answer.lua`, or 50 zero bytes if it failed
--
-- RUNTIME.terms is the format of the terms.

--@include prelude, answer, slots, each

return each(function(entry, key)
  local packed = ARGV[entry + 2]
  local reply = answer(call, pack, key, clock, given, nil,
    slots(call, pack, unpack, key, clock, given, 'hold', 0, 0, 0, unpack(RUNTIME.terms, packed, 2)))
  if type(reply) == 'table' then error(reply) end
  return reply
end, string.rep('\0', 50))
