-- Calls that have nothing to do with each other, decided in one script. Equal calls, of one key, one
-- limit and one cost, are one entry with a count: so many of them are admitted as one after the other
-- would have been.
--
-- In front of this text stand the scripts of the algorithms, each as a function of its KEYS and
-- ARGV: `sliding`, `fixed`, `sliding_counter`, `bucket`.
--
-- KEYS[i]  the key of entry i
-- ARGV[i]  algorithm (1): the index in the list below, count (4), then the packed argument
-- Reply    one string, for each entry: how many are admitted (4); the reply to the last of these, if
--          there is one; the reply to those that are refused, if there are any. An entry that failed is
--          2^32 - 1 alone, and its error is the next of the strings behind that one

local algorithms = { sliding, fixed, sliding_counter, bucket }
local DECIDE, PEEK, FAILED = 0, 1, 4294967295

-- One time for all of them.
local _, given, clock = struct.unpack('>I1I1I7', ARGV[1], 6)
if given == 0 then
  local time = redis.call('TIME')
  given, clock = 2, time[1] * 1000000 + time[2]
end

local function entry(index)
  local arg = ARGV[index]
  local algorithm, count = struct.unpack('>I1I4', arg)
  local cost = struct.unpack('>I4', arg, 15)

  local function ask(op, units)
    local head = struct.pack('>I1I1I7I4', op, given, clock, units)
    local reply = algorithms[algorithm]({ KEYS[index] }, { head .. string.sub(arg, 19) })
    if type(reply) == 'table' then error(reply.err, 0) end
    return reply
  end

  local function answer(admitted, replies)
    return struct.pack('>I4', admitted) .. replies
  end

  if count == 1 then
    local reply = ask(DECIDE, cost)
    return answer(string.byte(reply, 8), reply)
  end
  local admitted = count
  if cost > 0 then
    local _, _, remaining = struct.unpack('>I7I1I4', ask(PEEK, 0))
    admitted = math.min(count, math.floor(remaining / cost))
  end
  local replies = ''
  if admitted > 0 then replies = ask(DECIDE, admitted * cost) end
  if admitted < count then replies = replies .. ask(PEEK, cost) end
  return answer(admitted, replies)
end

local replies, errors = {}, { '' }
for index = 1, #KEYS do
  local done, reply = pcall(entry, index)
  if not done then
    errors[#errors + 1] = type(reply) == 'table' and reply.err or tostring(reply)
    reply = struct.pack('>I4', FAILED)
  end
  replies[index] = reply
end
errors[1] = table.concat(replies)
return errors
