-- The beginning of every script that decides calls: the names that its functions use, and the time.
--
-- ARGV[2]  the caller's clock, in microseconds since the epoch (7). If it is empty or missing, the script uses
--          the time of this server
--
-- Numbers in arguments, states and replies are packed, big-endian. A number in parentheses, as above, is the
-- length in bytes. Packing saves time: one unpack costs less than six `tonumber`. All numbers are integers below
-- 2^53, which Lua's doubles hold exactly.

-- The functions of the algorithms take the time, and these arguments:
--
-- given    ARGV[2]; nil if `clock` is the time of this server
-- op       `take` admits and charges a call, or rejects it. `peek` answers as a take does, and changes nothing.
--          `correct` changes what was charged. `hold` is of `slots.lua`
-- cost     the units of the call. Of `correct`: above 0, units to charge now, whatever the limit; below 0, units to
--          give back
-- birth    of a take: 0, or a number that no other state has, if the charge needs a receipt; a state without a birth
--          gets it. A receipt has the birth and the place of its charge, so it does not fit a state that was reset
--          since. Of `correct`: the birth of the receipt, or 0
-- operand  of a take: the longest wait, see `bucket.lua`. Of `peek`: 1 to count the units in use instead, and 2 as
--          `slots.lua` says. Of `correct`: the place of the receipt; without a receipt, the time that the charges have
--          recorded, or 0 for the newest units

local struct, KEYS, ARGV = struct, KEYS, ARGV
local call, pack, unpack = redis.call, struct.pack, struct.unpack

local given, clock = ARGV[2], nil
if given and given ~= '' then
  clock = unpack('>I7', given)
else
  given = nil
  local time = call('TIME')
  clock = time[1] * 1000000 + time[2]
end
