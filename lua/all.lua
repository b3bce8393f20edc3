
-- Several limits in one decision: all admit the call and are charged, or none is.
-- Twin of `Embedded::apply_all` in ratelimit-runtime/src/store/embedded.rs.
--
-- In front of this text stand the prelude, and the algorithms, each as a function that takes what is done
-- once for a limit, and gives the function that decides its calls: `sliding`, `fixed`, `sliding_counter`,
-- `bucket`.
--
-- KEYS[i]      the key of limit i; all are different
-- ARGV[1]      op: decide or peek (1), whose clock (1), clock (7); behind them the cost for each limit (4)
-- ARGV[i + 1]  limit i: its algorithm (1), the index in the list below, and what that unpacks
-- Reply        the replies of the limits, one behind the other; or, when a limit has none, its index and its
--              error

local algorithms = { sliding, fixed, sliding_counter, bucket }

local replies, admitted = {}, true
local function ask(as, index)
  local arg = ARGV[index + 1]
  local cost = unpack('>I4', ARGV[1], from + 4 * (index - 1))
  return algorithms[string.byte(arg)](arg)(KEYS[index], as, cost)
end

for index = 1, #KEYS do
  -- A command that fails raises an error, which does not say which key it is about.
  local done, reply = pcall(ask, PEEK, index)
  if not done or type(reply) == 'table' then
    return { index, type(reply) == 'table' and reply.err or reply }
  end
  admitted = admitted and string.byte(reply, 8) == 1
  replies[index] = reply
end

if admitted and op == DECIDE then
  for index = 1, #KEYS do replies[index] = ask(DECIDE, index) end
end

return table.concat(replies)
