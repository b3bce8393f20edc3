-- Removes the state of a sliding log, whatever is there. Its caller,
-- ratelimit-runtime/src/store/redis/segments.rs, removes the segments: a few at a time, as there may be
-- thousands. A log that starts meanwhile gives its segments other numbers.
--
-- KEYS[1]  the key of the count
-- Reply    of the segments, number of the first (6) and count (4), as in `lua/sliding.lua`; nothing if
--          there are none

local LONG = 130
local state = redis.pcall('GETRANGE', KEYS[1], '0', '40')
redis.call('UNLINK', KEYS[1])
-- An error is that of a key of another type.
if type(state) ~= 'string' or #state < 41 or string.byte(state) ~= LONG then return '' end
return string.sub(state, 32)
