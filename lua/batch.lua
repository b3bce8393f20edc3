-- Decides many calls, each by itself. `decide_entries.lua` explains the arguments and the reply.

--@include prelude, several, usual

-- Reads the values of all keys at once, if that helps.
local values = are_all_buckets and #KEYS > 1 and call('MGET', unpack_list(KEYS)) or {}
--@inline decide_entries
