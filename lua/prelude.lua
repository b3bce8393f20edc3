-- The beginning of every script that decides calls: the names that its functions use, and the time.
--
-- ARGV[2]  the caller's clock, in microseconds since the epoch (7). If it is empty or missing, the script uses
--          the time of this server
--
-- Numbers in arguments, states and replies are packed, big-endian. A number in parentheses, as above, is the
-- length in bytes. Packing saves time: one unpack costs less than six `tonumber`. All numbers are integers below
-- 2^53, which Lua's doubles hold exactly.

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
