
-- Reads the values of all keys at once, if that helps.
local values = are_all_buckets and #KEYS > 1 and call('MGET', unpack_list(KEYS)) or {}
