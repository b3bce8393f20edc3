-- Removes the state of a sliding log, or any other value of the key. Its caller,
-- ratelimit-runtime/src/store/redis/operations/segments.rs, removes the segments: a few at a time, because there may be
-- thousands. A log that starts in the meantime gives its segments other numbers.
--
-- KEYS[1]  the key of the count
-- Reply    how many keys were removed (1). If the log has segments, also the number of the first (6) and their count
--          (4), as in `lua/sliding.lua`

local LONG, BORN, CLOSED = 130, 64, 32
local state = redis.pcall('GETRANGE', KEYS[1], '0', '64')
local function remove() return string.char(redis.call('UNLINK', KEYS[1])) end
-- GETRANGE fails on a key of another type.
if type(state) ~= 'string' then return remove() end
-- A closed key: the state of the open key begins after 19 bytes, see `closing.lua`.
if string.byte(state) == CLOSED then state = string.sub(state, 20) end
local version, from = string.byte(state), 30
if version == LONG + BORN then version, from = LONG, 37 end
if version ~= LONG or #state < from + 9 then return remove() end
-- Each segment has 11 bytes in the state. Another value can contain any number.
local _, count = struct.unpack('>I6I4', state, from)
local is_there = redis.call('GETRANGE', KEYS[1], count * 11, count * 11) ~= ''
return remove() .. (is_there and string.sub(state, from, from + 9) or '')
