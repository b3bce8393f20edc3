-- The beginning of every script: its arguments, and the time. `epilogue.lua` is the end.
--
-- key  the key
-- arg  one packed string, big-endian (one unpack costs less than six `tonumber`):
--        1 byte   op: 0 decide, 1 peek, 2 refund, 5 return: give back what was charged at a moment
--                 (7), which ends the argument, and never used
--        1 byte   whose clock: 0 to ask this server, 1 the caller's
--        7 bytes  clock, microseconds since the epoch
--        4 bytes  cost
--        4 bytes  threshold
--        7 bytes  period, microseconds
--      and, from `rest` on, what the algorithm itself takes
-- as, at, units  op, clock and cost in the place of those, where a script decides more than one call
--
-- All numbers are integers below 2^53, exact in Lua's doubles. Functions are made anew by each call
-- of a script, so there are none on the common ways.

local DECIDE, PEEK, REFUND, RETURN = 0, 1, 2, 5

-- Every state begins with its version (1), and with the end of its TTL in milliseconds of the clock
-- (6). Another layout gets another version, so that neither a foreign text nor the state of another
-- release is taken for one.
local VERSION, BADSTATE = 1, 'BADSTATE not the state of a rate limit'

local call = redis.call
local op, given, clock, cost, threshold, period, rest = struct.unpack('>I1I1I7I4I4I7', arg)
if at then
  op, clock, cost = as, at, units or cost
elseif given == 0 then
  local time = call('TIME')
  clock = time[1] * 1000000 + time[2]
end

-- What the algorithm says, for the epilogue: whether the call is admitted, what remains, the waits
-- in microseconds from the clock (`reset` is how long the key is of use), by how many units of a
-- bucket `reset` was rounded up, and the text to write behind the beginning of the state, if anything
-- changed.
local allowed, remaining, retry, reset, slack, changed = false, 0, 0, 0, 0, nil

