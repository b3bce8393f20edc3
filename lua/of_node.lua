
-- The keys of a script for a node of a cluster. They are in any hash slots, so they are not declared as keys but follow
-- the other arguments, one for each entry of ARGV[1] (9 bytes each). A key of another node fails, and no other.
local entries = #ARGV[1] / 9
local others = #ARGV - entries
KEYS = {}
-- `MGET` reads the keys of one slot only.
local values = {}
for entry = 1, entries do KEYS[entry], ARGV[others + entry] = ARGV[others + entry], nil end
