#!lua flags=allow-cross-slot-keys
-- Decides many calls of keys in any hash slots of a node. So the keys are not declared, but are the last arguments, one
-- for each entry. A key of another node fails, and no other. Everything else is as in `batch.lua`.

--@include prelude

-- The other files read KEYS and the limits in ARGV, so this comes first. An entry of ARGV[1] has 9 bytes.
local count = #ARGV[1] / 9
local others = #ARGV - count
KEYS = {}
for entry = 1, count do KEYS[entry], ARGV[others + entry] = ARGV[others + entry], nil end
-- `MGET` reads the keys of one slot only.
local values = {}
--@inline decide_entries
