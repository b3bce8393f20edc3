
-- Decides calls that are independent of each other. Calls of one key, one limit and one cost are equal. Equal calls
-- are one entry with a count: the script admits as many of them as if they came one after the other.
--
-- KEYS[i]          the key of entry i
-- ARGV[1]          for each entry its limit (1), its cost (4) and its count (4)
-- ARGV[2]          see `prelude.lua`
-- ARGV[limit + 2]  a limit, see `several.lua`
-- Reply            list of strings. The first string contains a part for each entry. With a count of 1, the part
--                  is the reply to the call, see `answer.lua`. With a larger count, the part is the number of
--                  admitted calls (4), the reply to the last admitted call if there is one, and the reply to the
--                  rejected calls if there are any. If an entry failed, its part is 2^32 - 1 (4). The other
--                  strings are the errors of these entries, in their order

local FAILED = '\255\255\255\255'
local entries, replies, errors, index = ARGV[1], {}, { '' }, 0

-- Decides `count` equal calls: peeks how many fit, and charges these at once. Returns their part of the reply.
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

-- Decides the entries after `index`.
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

-- A command that fails raises an error. The script then continues with the next entry.
repeat
  local done, failed = pcall(ask_rest)
  if not done then
    replies[index], errors[#errors + 1] = FAILED, type(failed) == 'table' and failed.err or failed
  end
until done

errors[1] = table.concat(replies)
return errors
