-- Several limits in one decision: all admit the call and are charged, or none is.
-- Twin of `Embedded::apply_all` in ratelimit-runtime/src/store/embedded.rs.
--
-- In front of this text stand the scripts of the algorithms, each as a function: `sliding`, `fixed`,
-- `sliding_counter`, `bucket`.
--
-- KEYS[i]  the key of limit i; all are different
-- ARGV[i]  the packed argument of limit i; behind it its algorithm (1), the index in the list below.
--          The op of the first one, decide or peek, is that of all
-- Reply    the replies of the limits, one behind the other

local algorithms = { sliding, fixed, sliding_counter, bucket }
local DECIDE, PEEK = 0, 1

-- One time for all of them.
local op, given, clock = struct.unpack('>I1I1I7', ARGV[1])
if given == 0 then
  local time = redis.call('TIME')
  clock = time[1] * 1000000 + time[2]
end

local function ask(as, index)
  local arg = ARGV[index]
  return algorithms[string.byte(arg, -1)](KEYS[index], arg, as, clock)
end

local replies, admitted = {}, true
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
