-- Several limits in one decision: either all admit the call and are charged, or none is charged.
-- Twin of `Embedded::apply_many` in ratelimit-runtime/src/store/embedded/several.rs.
--
-- KEYS[i]      the key of limit i; all are different
-- ARGV[1]      op: `decide`, `acquire` or `peek`, and a zero byte; the birth that `acquire` gives to states without one
--              (7); then the cost for each limit (4)
-- ARGV[2]      see `prelude.lua`
-- ARGV[i + 2]  limit i, see `several.lua`
-- Reply        the replies of the limits in this order, see `answer.lua`; after an `acquire` that is admitted, each
--              with a receipt, which is zeros if the cost is 0; or, if a limit failed, its index and its error

--@include prelude, several

local op, birth, costs = unpack('>sI7', ARGV[1])
local replies, admitted = {}, true

for limit = 1, #KEYS do
  local cost = unpack('>I4', ARGV[1], costs + 4 * (limit - 1))
  -- A command that fails raises an error, which does not name the key.
  local done, reply = pcall(ask, limit, KEYS[limit], 'peek', cost)
  if not done then return { limit, type(reply) == 'table' and reply.err or reply } end
  admitted = admitted and string.byte(reply, 8) == 1
  replies[limit] = reply
end

if admitted and op ~= 'peek' then
  for limit = 1, #KEYS do
    local cost = unpack('>I4', ARGV[1], costs + 4 * (limit - 1))
    replies[limit] = ask(limit, KEYS[limit], op, cost, birth)
  end
end
return table.concat(replies)
