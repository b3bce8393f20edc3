
-- Calls that are independent of each other, decided in one script. Equal calls, of one key, one limit and one
-- cost, are one entry with a count: the script admits as many of them as if they came one after the other.
--
-- KEYS[i]          the key of entry i
-- ARGV[1]          for each entry its limit (1), its cost (4) and its count (4)
-- ARGV[2]          see `prelude.lua`
-- ARGV[limit + 2]  a limit, see `several.lua`
-- Reply            list of strings. The first has for each entry: with a count of 1 the reply to the call, see
--                  `answer.lua`; with a larger count how many calls are admitted (4), the reply to the last of
--                  these if there are any, and the reply to the others if there are any. An entry that failed
--                  has 2^32 - 1 instead (4), and its error is the next one of the other strings

local FAILED = '\255\255\255\255'
local entries, replies, errors, index = ARGV[1], {}, { '' }, 0

-- Asks about `count` equal calls: asks how many fit, and charges these at once. Returns the part of the reply.
local function ask_equal(limit, key, cost, count)
  local admitted = count
  if cost > 0 then
    local remaining = unpack('>I4', ask(limit, key, 'peek', 0), 9)
    admitted = math.min(count, math.floor(remaining / cost))
  end
  local reply = pack('>I4', admitted)
  if admitted > 0 then reply = reply .. ask(limit, key, 'decide', admitted * cost) end
  if admitted < count then reply = reply .. ask(limit, key, 'peek', cost) end
  return reply
end

-- Asks about the entries behind `index`.
local function ask_rest()
  for entry = index + 1, #KEYS do
    index = entry
    local limit, cost, count = unpack('>I1I4I4', entries, entry * 9 - 8)
    if count > 1 then
      replies[entry] = ask_equal(limit, KEYS[entry], cost, count)
    else
      replies[entry] = ask(limit, KEYS[entry], 'decide', cost)
    end
  end
end

-- A command that fails raises an error. The script still asks about the entries behind it.
repeat
  local done, failed = pcall(ask_rest)
  if not done then
    replies[index], errors[#errors + 1] = FAILED, type(failed) == 'table' and failed.err or failed
  end
until done

errors[1] = table.concat(replies)
return errors
