
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
-- Reply        the replies of the limits, one behind the other

local algorithms = { sliding, fixed, sliding_counter, bucket }

local replies, admitted = {}, true
local function ask(as, index)
  local arg = ARGV[index + 1]
  local cost = unpack('>I4', ARGV[1], from + 4 * (index - 1))
  return algorithms[string.byte(arg)](arg)(KEYS[index], as, cost)
end

for index = 1, #KEYS do
  local reply = ask(PEEK, index)
  if type(reply) == 'table' then return reply end -- an error
  admitted = admitted and string.byte(reply, 8) == 1
  replies[index] = reply
end

if admitted and op == DECIDE then
  for index = 1, #KEYS do replies[index] = ask(DECIDE, index) end
end

return table.concat(replies)
