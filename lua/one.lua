-- Decides one call.
--
-- KEYS[1]  the key
-- ARGV[1]  the op, and a zero byte; its cost (7, below 0 in two's complement), birth (7) and operand (7), see
--          `prelude.lua`; then the terms of the limit, as the algorithm takes them
-- ARGV[2]  see `prelude.lua`
-- Reply    see `answer.lua`
--
-- The runtime defines `algorithm`, the function of the limit, and `LAYOUT`, the format of ARGV[1].

--@include prelude

local key, block = KEYS[1], nil
local allowed, remaining, retry, reset, slack, version, lives, blocked, changed, receipt =
  algorithm(call, pack, unpack, key, clock, given, unpack(LAYOUT, ARGV[1]))
--@inline answer
