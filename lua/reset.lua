-- Removes the state of a sliding log, or any other value of the key. Its caller,
-- ratelimit-runtime/src/store/redis/segments.rs, removes the segments: a few at a time, because there may be
-- thousands. A log that starts in the meantime gives its segments other numbers.
--
-- KEYS[1]  the key of the count
-- Reply    how many keys were removed (1). If the log has segments, also the number of the first (6) and their count
--          (4), as in `lua/sliding.lua`

local LONG, BORN, CLOSED = 130, 64, 32
local state = redis.pcall('GETRANGE', KEYS[1], '0', '75')
local removed = string.char(redis.call('UNLINK', KEYS[1]))
-- GETRANGE fails on a key of another type.
if type(state) ~= 'string' then return removed end
-- A closed key: the state of the open key begins after 28 bytes, see `closing.lua`.
if string.byte(state) == CLOSED then state = string.sub(state, 29) end
if #state < 41 then return removed end
local version = string.byte(state)
if version == LONG then return removed .. string.sub(state, 32, 41) end
if version == LONG + BORN then return removed .. string.sub(state, 39, 48) end
return removed
