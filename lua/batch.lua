-- Calls that have nothing to do with each other, decided in one script. Equal calls, of one key, one
-- limit and one cost, are one entry with a count: so many of them are admitted as one after the other
-- would have been.
--
-- In front of this text stand the scripts of the algorithms, each as a function: `sliding`, `fixed`,
-- `sliding_counter`, `bucket`.
--
-- KEYS[i]  the key of entry i
-- ARGV[i]  the packed argument; behind it the algorithm (1), the index in the list below, and the
--          count (4)
-- Reply    one string, for each entry: how many are admitted (4); the reply to the last of these, if
--          there is one; the reply to those that are refused, if there are any. An entry that failed is
--          2^32 - 1 alone, and its error is the next of the strings behind that one

local algorithms = { sliding, fixed, sliding_counter, bucket }
local DECIDE, PEEK, FAILED = 0, 1, 4294967295

-- One time for all of them.
local given, clock = struct.unpack('>I1I7', ARGV[1], 2)
if given == 0 then
  local time = redis.call('TIME')
  clock = time[1] * 1000000 + time[2]
end

-- What an admitted and a refused call reply, as the count of a single entry says it.
local ONE, NONE = struct.pack('>I4', 1), struct.pack('>I4', 0)

-- Equal calls: asks how many fit, and charges these at once.
local function several(algorithm, key, arg, count)
  local cost, admitted = struct.unpack('>I4', arg, 10), count
  if cost > 0 then
    local peek = algorithm(key, arg, PEEK, clock, 0)
    if type(peek) == 'table' then return peek end
    local _, _, remaining = struct.unpack('>I7I1I4', peek)
    admitted = math.min(count, math.floor(remaining / cost))
  end
  local reply = struct.pack('>I4', admitted)
  if admitted > 0 then reply = reply .. algorithm(key, arg, DECIDE, clock, admitted * cost) end
  if admitted < count then reply = reply .. algorithm(key, arg, PEEK, clock) end
  return reply
end

local function entry(index)
  local arg = ARGV[index]
  local name, count = struct.unpack('>I1I4', arg, #arg - 4)
  if count > 1 then return several(algorithms[name], KEYS[index], arg, count) end
  local reply = algorithms[name](KEYS[index], arg, DECIDE, clock)
  if type(reply) == 'table' then return reply end
  return (string.byte(reply, 8) == 1 and ONE or NONE) .. reply
end

local replies, errors = {}, { '' }
for index = 1, #KEYS do
  -- A command that fails raises an error, in the middle of the others.
  local done, reply = pcall(entry, index)
  if not done or type(reply) == 'table' then
    errors[#errors + 1] = type(reply) == 'table' and reply.err or reply
    reply = struct.pack('>I4', FAILED)
  end
  replies[index] = reply
end
errors[1] = table.concat(replies)
return errors
