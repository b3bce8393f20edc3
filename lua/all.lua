-- Several limits in one decision: all admit the call and are charged, or none is.
-- Twin of `Embedded::apply_all` in ratelimit-runtime/src/store/embedded.rs.
--
-- In front of this text stand the scripts of the algorithms, each as a function of its KEYS and
-- ARGV: `sliding`, `fixed`, `sliding_counter`, `bucket`.
--
-- KEYS[i]  the key of limit i; all are different
-- ARGV[i]  the name of the algorithm of limit i in front of its packed argument: 1 byte, the index
--          in the list below; the op of the first argument, decide or peek, is that of all
-- Reply    the replies of the limits, one behind the other

local algorithms = { sliding, fixed, sliding_counter, bucket }
local DECIDE, PEEK = 0, 1

-- One time for all of them.
local op, given, clock = struct.unpack('>I1I1I7', ARGV[1], 2)
if given == 0 then
  local time = redis.call('TIME')
  given, clock = 2, time[1] * 1000000 + time[2]
end

local function ask(op, index)
  local arg = ARGV[index]
  local timed = struct.pack('>I1I1I7', op, given, clock) .. string.sub(arg, 11)
  return algorithms[string.byte(arg)]({ KEYS[index] }, { timed })
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
