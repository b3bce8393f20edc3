-- States what a process holds of counts of calls in flight: heartbeats, and the ends of calls.
--
-- KEYS[i]          the key of entry i
-- ARGV[1]          for each entry: the limit (1)
-- ARGV[2]          see `prelude.lua`
-- ARGV[limit + 2]  a limit with the numbers of the process, see `several.lua` and `slots.lua`
-- Reply            list of strings, see `each.lua`. The reply to an entry is that of the op `hold` with its receipt,
--                  see `answer.lua`; if it failed, 44 zero bytes

--@include prelude, each, several

local entries = ARGV[1]

return each(function(entry, key)
  return ask(string.byte(entries, entry), key, 'hold', 0)
end, string.rep('\0', 44))
