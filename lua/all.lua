
-- Several limits in one decision: either all admit the call and are charged, or none is charged.
-- Twin of `Embedded::apply_many` in ratelimit-runtime/src/store/embedded/mod.rs.
--
-- KEYS[i]      the key of limit i; all are different
-- ARGV[1]      op: `decide` or `peek`, and a zero byte; then the cost for each limit (4)
-- ARGV[2]      see `prelude.lua`
-- ARGV[i + 2]  limit i, see `several.lua`
-- Reply        the replies of the limits in this order, see `answer.lua`; or, if a limit failed, its index and
--              its error

local op, from = unpack('>s', ARGV[1])
local costs = { unpack('>' .. string.rep('I4', #KEYS), ARGV[1], from) }
local replies, admitted, index = {}, true, 0

local function ask_each(as)
  for limit = 1, #KEYS do
    index = limit
    replies[limit] = ask(limit, KEYS[limit], as, costs[limit])
  end
end

-- A command that fails raises an error that does not name the key, so the reply contains the index.
local done, failed = pcall(ask_each, 'peek')
if not done then return { index, type(failed) == 'table' and failed.err or failed } end
for limit = 1, #KEYS do admitted = admitted and string.byte(replies[limit], 8) == 1 end
if admitted and op == 'decide' then ask_each('decide') end
return table.concat(replies)
