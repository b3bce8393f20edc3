-- The beginning of every script. In front of it stands the line that unpacks `op`, `given` and `clock`,
-- and what else a script is told of its calls; behind it stands an algorithm, or each as a function.
--
-- op     0 decide, 1 peek, 2 refund, 3 book and 4 unbook, which only buckets know, 5 return: give back
--        what was charged at a moment and never used
-- given  whose clock: 0 to ask this server, 1 the caller's
-- clock  microseconds since the epoch
--
-- An algorithm is in two parts, with a line `-- Each call.` between them. The first is done once for a
-- limit, and unpacks from `arg`, at `from`, what says how it counts. The second is done for each call:
-- of `cost` units of `key`, at `moment`, if the op is about one. Then comes `epilogue.lua`.
--
-- All that is told is packed, big-endian: one unpack costs less than six `tonumber`. All numbers are
-- integers below 2^53, exact in Lua's doubles; as an argument of a command, a number costs more than the
-- command. Functions are made anew by each call of a script, and `%` costs less than to look `math.floor`
-- up, so an algorithm has neither on the common ways.

local DECIDE, PEEK, REFUND, BOOK, UNBOOK, RETURN = 0, 1, 2, 3, 4, 5

-- Every state begins with its version (1), and with the end of its TTL in milliseconds of the clock
-- (6). Another layout gets another version, so that neither a foreign text nor the state of another
-- release is taken for one.
local VERSION, BADSTATE = 1, 'BADSTATE not the state of a rate limit'

local call, pack, unpack = redis.call, struct.pack, struct.unpack

if given == 0 then
  local time = call('TIME')
  clock = time[1] * 1000000 + time[2]
end
