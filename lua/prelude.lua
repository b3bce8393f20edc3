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
-- given    the caller's clock; nil if `clock` is the time of this server
-- op       `take` admits and charges a call, or rejects it; `peek` answers as a take does, and changes nothing;
--          `correct` changes what was charged; `hold` is of `slots.lua`. Only a take can change the rate of a bucket
-- cost     the units of the call; of `correct`, the units to charge, or below 0 those to give back
-- birth    of a take that needs a receipt, the birth of a state without one, otherwise 0. A state has a birth once it
--          gives a receipt: the state of a key that was reset since has another one. Of `correct`, see `operand`
-- operand  of a take, the longest wait until its moment, see `bucket.lua`; of `peek`, 1 to count the units in use, and
--          2 as `slots.lua` says; of `correct`, the place of the charge if `birth` is that of its receipt. If `birth`
--          is 0, the time of the charges, as they have recorded it; or 0, to give back the newest units

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
