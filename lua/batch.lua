
-- Calls that have nothing to do with each other, decided in one script. Equal calls, of one key, one
-- limit and one cost, are one entry with a count: so many of them are admitted as one after the other
-- would have been.
--
-- In front of this text stand the prelude, and the algorithms, each as a function that takes what is done
-- once for a limit, and gives the function that decides its calls: `sliding`, `fixed`, `sliding_counter`,
-- `bucket`.
--
-- KEYS[i]      the key of entry i
-- ARGV[1]      op: decide (1), whose clock (1), clock (7); behind them for each entry its limit (1), its
--              cost (4) and its count (4)
-- ARGV[l + 1]  limit l: its algorithm (1), the index in the list below, and what that unpacks
-- Reply        one string, for each entry: of a count of 1 the reply to the call; else how many are
--              admitted (4), the reply to the last of these, if there is one, and the reply to those that
--              are refused, if there are any. An entry that failed is 2^32 - 1 instead (4), and its error
--              is the next of the strings behind that one

local algorithms = { sliding, fixed, sliding_counter, bucket }
local FAILED = '\255\255\255\255'

-- Made when they are needed: often one is.
local limits = {}

-- Equal calls: asks how many fit, and charges these at once.
local function several(decide, key, cost, count)
  local admitted = count
  if cost > 0 then
    local peek = decide(key, PEEK, 0)
    if type(peek) == 'table' then return peek end
    local _, _, remaining = unpack('>I7I1I4', peek)
    admitted = math.min(count, math.floor(remaining / cost))
  end
  local reply = pack('>I4', admitted)
  if admitted > 0 then reply = reply .. decide(key, DECIDE, admitted * cost) end
  if admitted < count then reply = reply .. decide(key, PEEK, cost) end
  return reply
end

local function entry(index)
  local limit, cost, count = unpack('>I1I4I4', ARGV[1], from + 9 * (index - 1))
  local decide = limits[limit]
  if not decide then
    local arg = ARGV[limit + 1]
    decide = algorithms[string.byte(arg)](arg)
    limits[limit] = decide
  end
  if count > 1 then return several(decide, KEYS[index], cost, count) end
  return decide(KEYS[index], DECIDE, cost)
end

local replies, errors = {}, { '' }
for index = 1, #KEYS do
  -- A command that fails raises an error, in the middle of the others.
  local done, reply = pcall(entry, index)
  if not done or type(reply) == 'table' then
    errors[#errors + 1] = type(reply) == 'table' and reply.err or reply
    reply = FAILED
  end
  replies[index] = reply
end
errors[1] = table.concat(replies)
return errors
